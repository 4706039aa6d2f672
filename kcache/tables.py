"""What the program put into torch's tables of lowerings, decompositions, patterns and back ends.

Inductor lowers an operator through whatever its tables hold at that moment, and no key of
torch's says so. Every entry whose code is not torch's own is a part of the key, by
closure. Entries that torch adds while it compiles (fallbacks) are torch's and are left
out, so the order of compiles changes nothing.

A table of a module that was never imported is as torch made it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kcache.closure import fingerprint
from kcache.digest import Part
from kcache.errors import Opaque

TABLES = (
    ("torch._inductor.lowering", "lowerings"),
    ("torch._inductor.lowering", "user_lowerings"),
    ("torch._inductor.lowering", "_maybe_layout_constraints"),
    ("torch._inductor.decomposition", "decompositions"),
    ("torch._inductor.decomposition", "extra_random_decomps"),
    ("torch._inductor.codegen.common", "device_codegens"),
    ("torch._decomp", "global_decomposition_table"),
)
"""(module, name of a dictionary in it); dictionaries of dictionaries are gone through."""

PATTERNS = (
    ("torch._inductor.fx_passes.pre_grad", "pass_patterns"),
    ("torch._inductor.fx_passes.joint_graph", "pass_patterns"),
    ("torch._inductor.fx_passes.post_grad", "pass_patterns"),
)
"""(module, name of a list of `PatternMatcherPass`)."""

_seen: dict[str, tuple[tuple[Any, ...], list[tuple[str, Any]]]] = {}


def parts() -> list[Part]:
    """A part per function of the program's in one of torch's tables. Raises `Opaque` where one cannot be followed."""
    found = []
    for name, function in sorted(_foreign(), key=lambda pair: pair[0]):
        print_ = fingerprint(function)
        if print_.opaque:
            raise Opaque(f"table {name}", print_.opaque[0].name, print_.opaque[0].why)
        found.append(Part(f"table {name}", print_.digest, print_.listing))
    return found


def _foreign() -> Iterator[tuple[str, Any]]:
    for module_name, name in TABLES:
        table = getattr(sys.modules.get(module_name), name, None)
        if isinstance(table, Mapping):
            yield from _entries(name, table)
    for module_name, name in PATTERNS:
        for position, matcher in enumerate(getattr(sys.modules.get(module_name), name, ())):
            entries = [entry for group in matcher.patterns.values() for entry in group]
            functions = [f for entry in entries for f in (getattr(entry, "handler", None), entry.extra_check)]
            table = {f"{position}.{i}": function for i, function in enumerate(functions)}
            yield from _entries(f"{module_name.rpartition('.')[2]} patterns {position}", table)


def _entries(name: str, table: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """(name, function) of the entries whose code is the program's; gone through anew only when the table changed."""
    if any(isinstance(value, Mapping) for value in table.values()):
        return [pair for key, inner in table.items() for pair in _entries(f"{name} {key}", inner)]
    values = tuple(table.values())
    before, found = _seen.get(name, ((), []))
    if len(before) != len(values) or any(a is not b for a, b in zip(before, values, strict=True)):
        found = [(f"{name} {key}", value) for key, value in table.items() if not _is_torchs(value)]
        _seen[name] = values, found
    return found


def _is_torchs(value: Any) -> bool:
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if code is not None:
        return bool(code.co_filename.startswith(torch.__path__[0]))
    owner = value if isinstance(value, type) else type(value)
    return owner.__module__.partition(".")[0] in ("torch", "builtins", "functools")
