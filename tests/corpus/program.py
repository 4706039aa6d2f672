"""One version of a package: its modules imported, its kernels found and described.

A description says what a kernel reaches, more rather than less: which functions, under which
names, and what is bound to them. It is made from code objects and live values, by other
means than kcache's, and is what the edits are judged by.
"""

from __future__ import annotations

import gc
import importlib
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus.machine import Tolerant

OTHER_COMPILERS = {"ascend", "_ascend", "triton_ascend", "cambricon", "_cambricon", "tilelang", "cutedsl", "cute",
                   "cutile", "gluon", "tests", "testing", "mlx"}  # fmt: skip
"""Folders that are not imported: back ends of other vendors, and tests."""

Place = tuple[str, int]
"""File below the tree and first line of a function, decorators included."""


@dataclass
class Kernel:
    """One kernel of a package."""

    id: str
    name: str
    own: Place
    helpers: set[Place] = field(default_factory=set)
    hosts: set[Place] = field(default_factory=set)
    """Functions that its launchers hold: heuristics, hooks, pruning."""
    names: set[str] = field(default_factory=set)
    """Every name and attribute in all of these."""
    launcher: str = ""
    """Its configurations and options."""
    bound: str = ""
    """What is bound to the names, as far as it is a constant."""


def load(tree: Path, package: str, backwards: bool = False) -> tuple[dict[str, tuple[Kernel, Any]], dict[str, str]]:
    """Import every module of `package` that mentions Triton.

    Returns its kernels, each as description and as the object that is launched, by id; and
    the modules that could not be imported, with the reason.
    """
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(tree))
    modules = sorted(_modules(tree, package), reverse=backwards)
    with Tolerant({package}) as finder:
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as error:
                finder.failed[module] = f"{type(error).__name__}: {error}"
    return _kernels(tree, package, set(finder.failed)), finder.failed


def _modules(tree: Path, package: str) -> Iterator[str]:
    for path in (tree / package).rglob("*.py"):
        inside = path.relative_to(tree).with_suffix("").parts
        if OTHER_COMPILERS.isdisjoint(inside) and b"triton" in path.read_bytes():
            yield ".".join(inside[:-1] if inside[-1] == "__init__" else inside)


def _kernels(tree: Path, package: str, failed: set[str]) -> dict[str, tuple[Kernel, Any]]:
    from triton.runtime.jit import JITFunction, KernelInterface

    objects = [o for o in gc.get_objects() if issubclass(type(o), KernelInterface)]
    above = {id(o.fn): o for o in objects if not isinstance(o, JITFunction) and hasattr(o, "fn")}
    jitted = [o for o in objects if isinstance(o, JITFunction) and o.fn.__module__.partition(".")[0] == package]
    jitted = sorted([o for o in jitted if o.fn.__module__ not in failed], key=_order)
    found, used, count = {}, set(), Counter[str]()
    for jit in jitted:
        top = jit
        while id(top) in above:
            top = above[id(top)]
        name = f"{jit.fn.__module__}:{jit.fn.__qualname__}"
        count[name] += 1
        kernel = Kernel(f"{name}#{count[name]}", jit.fn.__name__, _place(jit.fn, tree))
        _describe(kernel, jit, top, tree)
        used |= kernel.helpers
        found[kernel.id] = (kernel, top)
    return {i: (k, top) for i, (k, top) in found.items() if k.own not in used or not isinstance(top, JITFunction)}


def _order(jit: Any) -> tuple[str, str, int]:
    return jit.fn.__module__, jit.fn.__qualname__, jit.fn.__code__.co_firstlineno


def _place(fn: Any, tree: Path) -> Place:
    path = Path(fn.__code__.co_filename)
    inside = path.is_relative_to(tree)
    return (str(path.relative_to(tree)), fn.__code__.co_firstlineno) if inside else (path.name, 0)


def _describe(kernel: Kernel, jit: Any, top: Any, tree: Path) -> None:
    bound: dict[str, str] = {}
    seen = {id(jit.fn)}
    todo = [(jit.fn, kernel.helpers)]
    facts = []
    for launcher in _stack(top):
        facts.append({k: v for k, v in vars(launcher).items() if k in _OPTIONS} | _configs(launcher))
        todo += [(fn, kernel.hosts) for fn in _functions(_fields(launcher)) if fn is not jit.fn]
    while todo:
        fn, places = todo.pop()
        names = set(_names(fn.__code__))
        kernel.names |= names
        for name, value in _values(fn, names):
            inner = _function(value)
            if inner is None:
                bound[f"{fn.__module__} {name}"] = _text(value)
            elif id(inner) not in seen and not inner.__module__.startswith(("triton", "torch")):
                seen.add(id(inner))
                places.add(_place(inner, tree))
                todo.append((inner, places))
    for launcher in _stack(top):
        kernel.hosts |= {_place(fn, tree) for fn in _functions(_fields(launcher)) if fn is not jit.fn}
    kernel.launcher = repr(facts)
    kernel.bound = repr(sorted(bound.items()))


_OPTIONS = (
    "do_not_specialize",
    "do_not_specialize_on_alignment",
    "noinline",
    "debug",
    "reset_to_zero",
    "restore_value",
)


def _configs(launcher: Any) -> dict[str, Any]:
    return {"configs": [sorted(map(repr, c.all_kwargs().items())) for c in getattr(launcher, "configs", [])]}


def _fields(launcher: Any) -> dict[str, Any]:
    """What a launcher holds besides the function, its module and its documentation."""
    return {k: v for k, v in vars(launcher).items() if not k.startswith("__") and k not in ("fn", "base_fn", "run")}


def _stack(top: Any) -> Iterator[Any]:
    while top is not None and not isinstance(top, types.FunctionType):
        yield top
        top = getattr(top, "fn", None)


def _functions(value: Any, depth: int = 3) -> Iterator[Any]:
    """Python functions in fields, containers and configurations."""
    if isinstance(value, types.FunctionType):
        if not value.__module__.startswith(("triton", "torch")):
            yield value
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from _functions(each, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for each in value:
            yield from _functions(each, depth - 1)
    elif depth and type(value).__name__ == "Config":
        yield from _functions(vars(value), depth - 1)


def _function(value: Any) -> Any:
    """The Python function in a kernel, a launcher or a constexpr function."""
    while not isinstance(value, types.FunctionType):
        if isinstance(value, type) or not hasattr(value, "fn"):
            return None
        value = value.fn
    return value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _values(fn: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    """What the names of `fn` may mean: globals, cells, defaults, and attributes of modules and classes among them."""
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    for name in sorted(names):
        value = cells[name].cell_contents if name in cells else fn.__globals__.get(name, types)
        if value is types or getattr(value, "__name__", "").startswith(("triton", "torch")):
            continue
        yield name, value
        if isinstance(value, (types.ModuleType, type)):
            yield from [(f"{name}.{a}", vars(value)[a]) for a in sorted(names) if a in vars(value)]
    yield from _defaults(fn)


def _defaults(fn: Any) -> Iterator[tuple[str, Any]]:
    """Default values of `fn`, named by position or keyword."""
    yield from ((f"default {i}", value) for i, value in enumerate(fn.__defaults__ or ()))
    yield from ((f"default {name}", value) for name, value in (fn.__kwdefaults__ or {}).items())


def _text(value: Any, depth: int = 3) -> str:
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    if type(value) is dict:
        return (
            f"{{{', '.join([f'{_text(k, depth - 1)}: {_text(v, depth - 1)}' for k, v in value.items()])}}}"
            if depth
            else "dict"
        )
    if isinstance(value, (tuple, list)):
        return f"[{', '.join([_text(v, depth - 1) for v in value])}]" if depth else "sequence"
    if type(value).__name__ in ("constexpr", "dtype"):
        return str(value)
    if isinstance(value, (types.FunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__name__
