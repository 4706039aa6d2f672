"""Functions that generated code calls by a name in Inductor's `extern_kernels`.

A function of the program's gets such a name when Inductor first considers it. A process
that finds the code in the store has not considered anything, so those of the setting
`external_matmul` get their names before an entry is loaded. Code that calls a function
which came there by another way is not stored: nobody could say how to bring it back.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

from kcache.graph import owned_by_torch
from kcache.hooks.patch import Patches, require


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor.output_code import CompiledFxGraph

    require(CompiledFxGraph, "after_deserialization", ("self", "constants"))
    load = CompiledFxGraph.after_deserialization

    def after_deserialization(self: Any, constants: Any) -> Any:
        register()
        return load(self, constants)

    patches.replace(CompiledFxGraph, "after_deserialization", after_deserialization)


def register() -> None:
    """Give the functions in `external_matmul` their names, as Inductor would when it first considers them."""
    from torch._inductor import config

    if config.external_matmul:
        from torch._inductor.kernel.mm import lazy_register_extern_choice

        for function in config.external_matmul:
            lazy_register_extern_choice(function)


def unsaid(code: str) -> str:
    """Name of a function of the program's that `code` calls and that `register` would not bring back, or ""."""
    from torch._inductor import config

    named = getattr(sys.modules.get("torch._inductor.select_algorithm"), "extern_kernels", None)
    own = {name for name, function in getattr(named, "__dict__", {}).items() if not owned_by_torch(function)}
    own -= {function.__name__ for function in config.external_matmul}
    if not own:
        return ""
    called = {
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "extern_kernels"
    }
    return min(own & called, default="")
