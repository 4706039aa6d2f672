"""Constants as Python expressions: what a printed text says for a value.

The expression makes an equal value of the same type wherever Triton, torch and `builtins`
can be imported. What cannot be said so is left to `leaf`, which returns an expression or
raises `Opaque`.
"""

from __future__ import annotations

import cmath
import math
import sys
from collections.abc import Callable
from typing import Any

from kcache.errors import Opaque
from kcache.watch import read

Leaf = Callable[[Any], str]

PLAIN = frozenset({type(None), bool, int, str, bytes, type(Ellipsis)})
"""Types whose `repr` is the expression."""


def literal(value: Any, leaf: Leaf, module: Callable[[str], str]) -> str:
    """Expression for `value`; `module` gives the name under which an importable module is known.

    Raises `Opaque` for values of other types that `leaf` refuses, and for containers that
    hold themselves.
    """
    return _Printer(leaf, module).text(value)


class _Printer:
    def __init__(self, leaf: Leaf, module: Callable[[str], str]) -> None:
        self.leaf = leaf
        self.module = module
        self.open: list[int] = []

    def text(self, value: Any) -> str:
        cls = type(value)
        if cls in PLAIN:
            return repr(value)
        if cls is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if cls is complex and cmath.isfinite(value) and math.copysign(1, value.real) > 0:
            return repr(value)
        if cls in (tuple, list, dict, set, frozenset):
            return self.container(value)
        if cls.__module__ == "triton.language.core":
            return self.triton(value)
        if (cls.__module__, cls.__name__) == ("torch", "dtype"):
            return f"{self.module('torch')}.{str(value).removeprefix('torch.')}"
        return self.leaf(value)

    def container(self, value: Any) -> str:
        if id(value) in self.open:
            raise Opaque("constant", type(value).__name__, "it holds itself")
        self.open.append(id(value))
        try:
            if isinstance(value, dict):
                return "{" + ", ".join([f"{self.text(k)}: {self.text(v)}" for k, v in value.items()]) + "}"
            inner = [self.text(v) for v in value]
        finally:
            self.open.pop()
        if isinstance(value, tuple):
            return f"({', '.join(inner)}{',' * (len(inner) == 1)})"
        if isinstance(value, list):
            return f"[{', '.join(inner)}]"
        inner.sort()
        return f"{type(value).__name__}([{', '.join(inner)}])"

    def triton(self, value: Any) -> str:
        """A `constexpr` or a type of Triton's, by the name that `triton.language` has for it."""
        kind = type(value).__name__
        if kind == "constexpr":
            return f"{self.published(kind, type(value))}({self.text(value.value)})"
        if kind == "dtype":
            return self.published(value.name if value.name == "void" else value.codegen_name(), value)
        if kind == "pointer_type":
            arguments = [self.text(value.element_ty), repr(value.address_space), *(["True"] if value.const else [])]
            return f"{self.published(kind, type(value))}({', '.join(arguments)})"
        return self.leaf(value)

    def published(self, name: str, value: Any) -> str:
        if read(sys.modules.get("triton.language"), name) != value:
            raise Opaque("constant", f"tl.{name}", "the program has put something else in its place")
        return f"{self.module('triton.language')}.{name}"
