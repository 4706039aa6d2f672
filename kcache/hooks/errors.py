"""Triton's compile errors in a linked text, shown where they are in the program.

Inductor compiles the linked text, in a worker as a rule, and what Triton says of it names
functions and lines that the program does not have. Here the place in the program and the
place in the generated file are added to the error's message; its type stays.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from typing import Any

from kcache.hooks import session
from kcache.hooks.patch import Patches, require
from kcache.origin import Origin

Known = dict[str, Mapping[str, Origin]]

KNOWN: Known = {}
"""By the text of a kernel's own function, as Triton reads it: where each function of its linked text came from."""


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor.runtime import triton_heuristics
    from triton.compiler.errors import CompilationError

    owner = triton_heuristics.CachingAutotuner
    require(owner, "_precompile_config", ("self", "cfg"))
    precompile = owner._precompile_config

    def _precompile_config(self: Any, cfg: Any) -> Any:
        try:
            return precompile(self, cfg)
        except CompilationError as error:
            try:
                if (place := where(error, self.fn)) is not None:
                    error.message = f"{error.message}\n{place}"
            except Exception as trouble:
                if session.CURRENT is not None:
                    session.CURRENT.trouble("fx", "place of a compile error not found", trouble)
            raise

    patches.replace(owner, "_precompile_config", _precompile_config)


def note(text: str, origins: Mapping[str, Origin]) -> None:
    """Remember where the functions of a linked text came from, whose kernel's own function is `text`."""
    KNOWN[text.strip()] = origins


def where(error: Any, kernel: Any) -> str | None:
    """The place of `error` in the program and in the generated module of the jitted `kernel`; None if not ours."""
    origins = KNOWN.get(kernel.src.strip())
    if origins is None:
        return None
    while getattr(error.__cause__, "node", None) is not None and getattr(error.__cause__, "src", None):
        error = error.__cause__
    name = ast.parse(textwrap.dedent(error.src)).body[0].name  # type: ignore[attr-defined]
    origin, function = origins.get(name), kernel if name == kernel.fn.__name__ else kernel.fn.__globals__.get(name)
    if origin is None or function is None:
        return None
    line = error.node.lineno
    first = function.starting_line_number + len(function.raw_src) - len(function.src.splitlines())
    generated = f"{function.fn.__code__.co_filename}:{first + line - 1}"
    return f"in {origin.name}, {origin.file}:{origin.line(error.src, line)}, linked as {name} in {generated}"
