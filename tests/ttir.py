"""The oracle: what Triton makes of a kernel for a GPU that need not be there."""

from __future__ import annotations

import re
from typing import Any

POINTERS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32"}
"""Signature of the kernels in `tests.edits`; what is not in it is a constexpr."""


def lower(kernel: Any, signature: dict[str, str] | None = None, constants: dict[str, Any] | None = None) -> str:
    """TTIR of a jitted function for compute capability 9.0, without locations and with functions numbered.

    Parameters that are in neither argument take their default value, or 16. Raises what Triton raises.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    known = POINTERS if signature is None else signature
    types = {p.name: known.get(p.name, "constexpr") for p in kernel.params}
    values = {
        p.name: (constants or {}).get(p.name, p.default if p.has_default else 16)
        for p in kernel.params
        if types[p.name] == "constexpr"
    }
    options = backend.parse_options({"num_warps": 4})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, types, values)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    return _numbered(module.str_nodebug())


def _numbered(text: str) -> str:
    """`text` with every function called by the order in which it appears."""
    names: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return f"@f{names.setdefault(match.group(0), str(len(names)))}"

    return re.sub(r'@(?:"[^"]+"|[\w.$-]+)', number, text)
