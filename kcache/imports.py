"""Names in a text that stands alone: its own, each once, and those that it imports.

What torch, Triton or the standard library own is reached by its own module and name, never
by the path on which the program found it: `tl.exp` may be the user's. Where the object is
one that `triton.language` itself publishes, the text says `tl.name`.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import keyword
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from kcache.errors import Opaque
from kcache.watch import read

FIXED = {"triton": "triton", "triton.language": "tl"}
"""Modules that every printed text has, by these names."""


class Names:
    """Names of one module, none of which hides another. `taken` are those that functions in it use for themselves."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._inner = set(taken)
        self._taken = {*self._inner, *FIXED.values(), *dir(builtins), *keyword.kwlist, *keyword.softkwlist}

    def free(self, name: str) -> bool:
        """Whether no function uses `name` for something of its own."""
        return name not in self._inner

    def fresh(self, wanted: str) -> str:
        """A name like `wanted` that nothing else has."""
        base = re.sub(r"\W", "_", wanted) or "value"
        base = base if base.isidentifier() else f"_{base}"
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def exact(self, name: str) -> None:
        """Take `name` itself, or raise `Opaque` if it is taken."""
        if name in self._taken - self._inner:
            raise Opaque("linked text", name, "two things must have this name")
        self._taken.add(name)


class Imports:
    """Import lines of one text, made as they are asked for."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._aliases: dict[str, str] = {}

    def lines(self) -> list[str]:
        """`import …` for every module asked for beyond the fixed ones, in the order of asking."""
        return [
            f"import {module}" if module == alias else f"import {module} as {alias}"
            for module, alias in self._aliases.items()
            if FIXED.get(module) != alias
        ]

    def module(self, module: str) -> str:
        """The name under which `module` is known here.

        Triton skips what is reached through `triton.language`, and refuses Python functions
        that are reached otherwise: so a module of that package is named as an attribute of it.
        """
        found = self._aliases.get(module)
        if found is None:
            package, _, child = module.rpartition(".")
            if package == "triton.language" and child in _submodules():
                return f"{self.module(package)}.{child}"
            fixed = FIXED.get(module)
            found = fixed if fixed and self._names.free(fixed) else self._names.fresh(module.rpartition(".")[2])
            self._aliases[module] = found
        return found

    def owned(self, value: Any, owner: str, bare: str = "") -> str:
        """Expression for what `resolve.owner` calls `owner`; `bare` is a name that means it in every module."""
        module, qualname = _split(value, owner.partition(" ")[0])
        if module == "builtins":
            return qualname if qualname == bare or self._names.free(qualname) else f"{self.module(module)}.{qualname}"
        public = _published().get((module, qualname))
        if public is not None and read(sys.modules.get("triton.language"), public) is value:
            return f"{self.module('triton.language')}.{public}"
        return f"{self.module(module)}.{qualname}"


def _split(value: Any, dotted: str) -> tuple[str, str]:
    """Module and name in `dotted` under which `value` is found. Raises `Opaque` if there are none."""
    at = len(dotted)
    while (at := dotted.rfind(".", 0, at)) > 0:
        module, qualname = dotted[:at], dotted[at + 1 :]
        found: Any = sys.modules.get(module)
        for step in qualname.split("."):
            found = read(found, step)
        if found is value:
            return module, qualname
    raise Opaque("linked text", dotted, "it is not found under its own name")


@lru_cache(maxsize=1)
def _published() -> dict[tuple[str, str], str]:
    """`tl` names by module and name, from the imports that `triton/language/__init__.py` makes as installed."""
    return {
        (f"triton.language.{node.module}", alias.name): alias.asname or alias.name
        for node in _relative_imports()
        if node.module
        for alias in node.names
    }


@lru_cache(maxsize=1)
def _submodules() -> frozenset[str]:
    """Modules of `triton.language` that it imports itself, so that they are its attributes in every process."""
    nodes = _relative_imports()
    return frozenset([n for node in nodes for n in ([node.module] if node.module else [a.name for a in node.names])])


@lru_cache(maxsize=1)
def _relative_imports() -> tuple[ast.ImportFrom, ...]:
    spec = importlib.util.find_spec("triton.language")
    if spec is None or spec.origin is None:
        return ()
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return tuple([n for n in tree.body if isinstance(n, ast.ImportFrom) and n.level == 1])
