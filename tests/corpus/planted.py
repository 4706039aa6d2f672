"""Atoms moved out of a kernel to where real code also keeps such things, and changed there.

A version of the package holds the atom with its value, another one with another value: each
kernel that was changed so must have two keys.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from tests.corpus.program import Kernel
from tests.corpus.semantic import OTHER
from tests.corpus.text import Change, Function, Source, changed, code, expressions

MODULE = "planted_atoms"
"""The module that is added to the package."""


class Kind(NamedTuple):
    """`here` and `there` define the atom `{n}` as `{v}`, in the kernel's module and in the added one."""

    use: str
    here: str = ""
    there: str = ""
    find: str = "number"


_JIT = "@triton.jit\ndef f{n}({p}):\n    return {r}\n"

KINDS: dict[str, Kind] = {
    "global": Kind("PLANTED_{n}", here="PLANTED_{n} = planted_tl.constexpr({v})\n"),
    "constant of another module": Kind("planted.C_{n}", there="C_{n} = tl.constexpr({v})\n"),
    "class attribute": Kind("Planted{n}.C", here="class Planted{n}:\n    C = planted_tl.constexpr({v})\n"),
    "closure": Kind("PLANTED_C"),
    "helper of another module": Kind("planted.f{n}()", there=_JIT.format(n="{n}", p="", r="{v}")),
    "helper's helper under an alias": Kind(
        "planted_f{n}()",
        here="planted_f{n} = planted.g{n}\n",
        there=_JIT.format(n="{n}", p="", r="{v}") + "h{n} = f{n}\n@triton.jit\ndef g{n}():\n    return h{n}()\n",
    ),
    "default value": Kind("planted.f{n}()", there=_JIT.format(n="{n}", p="x: tl.constexpr = {v}", r="x")),
    "constexpr function": Kind("planted.f{n}()", there="@triton.constexpr_function\ndef f{n}():\n    return {v}\n"),
    "constexpr function's constant": Kind(
        "planted.f{n}()", there="C_{n} = [{v}]\n@triton.constexpr_function\ndef f{n}():\n    return C_{n}[0]\n"
    ),
    "builtin under an alias": Kind("planted_op{n}", here="planted_op{n} = {v}\n", find="builtin"),
    "builtin in another module": Kind("planted.op{n}", there="op{n} = {v}\n", find="builtin"),
    "dtype": Kind("PLANTED_T{n}", here="PLANTED_T{n} = {v}\n", find="dtype"),
}


def edited(tree: Path, package: str, kernels: Iterable[Kernel], kind: str) -> tuple[list[dict[str, bytes]], set[str]]:
    """Files of the two versions, and `module:name` of the kernels that hold the atom."""
    made: list[dict[str, bytes]] = [{}, {}]
    theirs: list[list[str]] = [[], []]
    held = set()
    by_file: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.own[1]:
            by_file.setdefault(kernel.own[0], []).append(kernel)
    for number, (file, inside) in enumerate(sorted(by_file.items())):
        source = Source(tree / file)
        changes: list[list[Change]] = [[], []]
        heads = [[f"import triton.language as planted_tl\nimport {package}.{MODULE} as planted\n"] for _ in range(2)]
        for kernel in inside:
            site = _site(source, kernel, kind) if source.after_imports is not None else None
            if site is None:
                continue
            held.add(kernel.id.partition("#")[0])
            n = f"{number}_{kernel.own[1]}"
            for version in (0, 1):
                value = site.values[version]
                heads[version].append(KINDS[kind].here.format(n=n, v=value))
                theirs[version].append(KINDS[kind].there.format(n=n, v=value.replace("planted_tl", "tl")))
                changes[version] += site.changes(KINDS[kind].use.format(n=n), value)
        at = source.after_imports or 0
        for version in (0, 1):
            if changes[0]:
                made[version][file] = changed(source.data, [*changes[version], Change(at, at, "".join(heads[version]))])
    for version in (0, 1):
        text = "import triton\nimport triton.language as tl\n" + "".join(theirs[version])
        made[version][f"{package}/{MODULE}.py"] = text.encode()
    return made, held


class _Site(NamedTuple):
    source: Source
    function: Function
    line: int
    node: Any
    values: tuple[str, str]

    def changes(self, use: str, value: str) -> list[Change]:
        """The atom replaced by `use`, or the whole function put into another one whose argument the atom is."""
        if use != "PLANTED_C":
            return [self.source.replace(self.node, use)]
        start, end = self.source.lines[self.line - 1], self.source.end(self.function)
        inner = changed(
            self.source.data[start:end],
            [Change(self.source.start(self.node) - start, self.source.end(self.node) - start, use)],
        )
        name = self.function.name
        around = f"def planted_{name}(PLANTED_C):\n{indent(inner.decode(), '    ')}\n    return {name}\n"
        return [Change(start, end, f"{around}{name} = planted_{name}(planted_tl.constexpr({value}))")]


def _site(source: Source, kernel: Kernel, kind: str) -> _Site | None:
    """The atom that is taken out of a kernel at module level."""
    function = source.functions.get(kernel.own[1])
    if not isinstance(function, Function) or function.col_offset:
        return None
    find = _FIND[KINDS[kind].find]
    sites = [n for n in expressions([s for s in code(function) if s.lineno > function.lineno]) if find(n)]
    if not sites:
        return None
    node = random.Random(f"{kernel.id} {kind}").choice(sites)
    if isinstance(node, ast.Attribute):
        return _Site(
            source, function, kernel.own[1], node, (f"planted_tl.{node.attr}", f"planted_tl.{OTHER[node.attr]}")
        )
    value = node.value
    return _Site(source, function, kernel.own[1], node, (repr(value), repr(value * 2 if value > 3 else value + 1)))


def _of_triton(node: Any, names: Iterable[str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "tl"
        and node.attr in names
    )


_DTYPES = ("float32", "float16", "int32", "int64")
_FIND: dict[str, Callable[[Any], bool]] = {
    "number": lambda n: isinstance(n, ast.Constant) and type(n.value) in (int, float),
    "dtype": lambda n: _of_triton(n, _DTYPES),
    "builtin": lambda n: _of_triton(n, set(OTHER) - set(_DTYPES)),
}
