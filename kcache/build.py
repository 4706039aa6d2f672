"""Compiling from recipes, in this process or in many, without a GPU and without the program.

A pool's workers are fresh interpreters that import Triton and nothing of the program's.
They are started by the first task, at most one per core that this process may use, and end
by themselves when they have been idle. A task that fails, or whose worker dies, is an
exception of its future.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import linecache
import os
import sys
import tempfile
import textwrap
import types
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kcache.errors import KcacheError
from kcache.recipe import Recipe, Target

IDLE_SECONDS = 20


class BuildError(KcacheError):
    """A recipe cannot be followed here, or the compiler refused it."""


class _Modules(dict[str, Any]):
    """What the names in a recipe's constants mean: modules, imported when they are asked for."""

    def __missing__(self, name: str) -> Any:
        self[name] = importlib.import_module({"tl": "triton.language"}.get(name, name))
        return self[name]


def build(recipe: Recipe) -> dict[str, bytes]:
    """Compile; return the files of the group by name, as Triton would have written them.

    Raises `BuildError` where this machine's compiler is not the recipe's, and whatever
    Triton raises. Changes the process's environment to the recipe's.
    """
    import triton
    from triton import knobs
    from triton.compiler.compiler import ASTSource
    from triton.runtime.cache import FileCacheManager

    target, _, options = prepared(recipe)
    environment = _environment(recipe)
    constants = eval(recipe.constants, {}, _Modules())
    function = load(recipe.text, recipe.name)
    source = ASTSource(function, recipe.signature, constants, ast.literal_eval(recipe.attributes))
    with tempfile.TemporaryDirectory(prefix="kcache-build-") as directory, knobs.cache.scope():
        knobs.cache.dir = directory
        knobs.cache.manager_class = FileCacheManager
        try:
            made = triton.compile(source, target=target, options=options.__dict__, _env_vars=environment)
        except triton.CompilationError as error:
            raise BuildError(place(error, recipe.text)) from error
        files = {name: Path(path).read_bytes() for name, path in made.metadata_group.items()}
    facts = json.loads(files[recipe.group])
    facts["hash"] = recipe.hash
    files[recipe.group] = json.dumps(facts).encode()
    return files


def place(error: Any, text: str) -> str:
    """Where in a linked text Triton's compilation `error` lies: the function it came from, the line, and why."""
    reason = str(error).strip().rpartition("\n")[2]
    while hasattr(error.__cause__, "node") and getattr(error.__cause__, "src", None):
        error = error.__cause__
        reason = str(error).strip().rpartition("\n")[2]
    if error.__cause__ is not None:
        reason = repr(error.__cause__)
    lines = text.splitlines()
    name = ast.parse(textwrap.dedent(error.src)).body[0].name  # type: ignore[attr-defined]
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
            came = lines[first - 2] if first > 1 and lines[first - 2].startswith("# from ") else f"# from {name}"
            line = node.lineno + (error.node.lineno if error.node is not None else 1) - 1
            shown = f"line {line} of the linked text: {lines[line - 1].strip()}"
            return f"{came.removeprefix('# from ')}: {shown}: {reason}"
    return f"{name}: {reason}"


def prepared(recipe: Recipe) -> tuple[Any, Any, Any]:
    """(target, back end, options) of Triton's for `recipe`. Raises `BuildError` if its tools are not at hand."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    if triton.__version__ != recipe.versions["triton"]:
        raise BuildError(f"it was compiled with Triton {recipe.versions['triton']}, and this is {triton.__version__}")
    if (torch := recipe.versions.get("torch")) and torch != (here := importlib.import_module("torch").__version__):
        raise BuildError(f"its text uses torch {torch}, and this is {here}")
    target = GPUTarget(*recipe.target)
    try:
        backend = make_backend(target)
    except Exception as error:
        raise BuildError(f"this Triton has no back end for {target.backend}: {error}") from error
    try:
        tool = backend.hash()
    except Exception as error:
        raise BuildError(f"the back end's assembler is missing: {error}") from error
    if (here := tool.rpartition("-")[0]) != recipe.versions["tool"]:
        raise BuildError(f"it was assembled by {recipe.versions['tool']!r}, and this machine has {here!r}")
    return target, backend, backend.parse_options(ast.literal_eval(recipe.options))


def retarget(recipe: Recipe, target: Target) -> Recipe:
    """`recipe` for `target`, under the hash by which that machine will ask. Raises `BuildError` as `prepared` does."""
    moved = recipe.on(target, "")
    _, backend, options = prepared(moved)
    digest = hashlib.sha256(moved.key(backend.hash(), options.hash()).encode()).hexdigest()
    return recipe.on(target, digest)


def _environment(recipe: Recipe) -> dict[str, str]:
    """Make the variables that Triton keys on what the recipe says, and return them as Triton reads them now."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    wanted = dict(recipe.environment)
    for name in {*wanted, *get_cache_invalidating_env_vars()}:
        if name in wanted:
            os.environ[name] = wanted[name]
        else:
            os.environ.pop(name, None)
    found: dict[str, str] = get_cache_invalidating_env_vars()
    if {str(k): str(v) for k, v in found.items()} != wanted:
        raise BuildError(f"its settings cannot be made here: {sorted(set(found) ^ set(wanted))}")
    return found


def load(text: str, name: str) -> Any:
    """The jitted function `name` of a linked text, in a module of its own that `inspect` and tracebacks can read."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    module = types.ModuleType(f"kcache_linked_{digest}")
    path = f"<kcache linked {name} {digest}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    exec(compile(text, path, "exec"), module.__dict__)
    return getattr(module, name)


def cores() -> int:
    """How many cores this process may use, cgroup limits and affinity included."""
    import loky

    return int(loky.cpu_count())


class Pool:
    """Worker processes that follow recipes. Any thread may submit."""

    def __init__(self, jobs: int) -> None:
        from loky import ProcessPoolExecutor
        from loky.backend import get_context

        self.jobs = jobs
        context = get_context("loky")  # fresh interpreters, which do not run the program's main module again
        self._executor = ProcessPoolExecutor(max_workers=jobs, timeout=IDLE_SECONDS, context=context)

    def submit(self, recipe: Recipe) -> Future[dict[str, bytes]]:
        """Compile `recipe` in a worker."""
        future: Future[dict[str, bytes]] = self._executor.submit(build, recipe)
        return future

    def close(self) -> None:
        """Stop the workers; tasks not yet begun are cancelled."""
        self._executor.shutdown(wait=False, kill_workers=True)
