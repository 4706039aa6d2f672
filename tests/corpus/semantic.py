"""Edits that change what a kernel computes or how it is launched: one atom each."""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.corpus.program import Kernel, Place
from tests.corpus.text import Change, Function, Source, code, expressions

ROUNDS = 10
"""How many versions of a package are made; no kernel is touched twice in one."""
SITES = 2
"""Edits of one kind in one function."""


class Edit(NamedTuple):
    """One edit. It touches the kernels that reach `place`, or `name` where there is no place."""

    kind: str
    file: str
    change: Change
    place: Place | None
    name: str = ""

    def touches(self, kernel: Kernel) -> bool:
        if self.place is None:
            return self.name in kernel.names
        return self.place == kernel.own or self.place in kernel.helpers or self.place in kernel.hosts


def edits(tree: Path, kernels: Iterable[Kernel], seed: str) -> list[Edit]:
    """Candidates in everything that `kernels` reach, the same for the same seed."""
    chance = random.Random(seed)
    kernels = list(kernels)
    own = {k.own for k in kernels}
    hosts = {p for k in kernels for p in k.hosts}
    places = own | hosts | {p for k in kernels for p in k.helpers}
    sources = {file: Source(tree / file) for file, line in sorted(places) if line}
    found: list[Edit] = []
    for place in sorted(places):
        function = sources[place[0]].functions.get(place[1]) if place[1] else None
        if function is None:
            continue
        by_kind = defaultdict(list)
        for kind, change in _in_function(sources[place[0]], function, place in own, place in hosts):
            by_kind[kind].append(Edit(kind, place[0], change, place))
        for kind in sorted(by_kind):
            found += chance.sample(by_kind[kind], min(SITES, len(by_kind[kind])))
    names = {name for k in kernels for name in k.names}
    for file, source in sources.items():
        found += [Edit("constant of a module or class", file, c, None, n) for n, c in _constants(source) if n in names]
    return found


def rounds(found: list[Edit], kernels: Iterable[Kernel], seed: str) -> list[list[Edit]]:
    """Edits that may be made at once, rare kinds first."""
    kernels = list(kernels)
    chance, often = random.Random(seed), Counter(e.kind for e in found)
    packed: list[list[Edit]] = [[] for _ in range(ROUNDS)]
    taken: list[set[str]] = [set() for _ in range(ROUNDS)]
    for edit in sorted(found, key=lambda e: (often[e.kind] > 40, chance.random())):
        touched = {k.id for k in kernels if edit.touches(k)}
        for made, ids in zip(packed, taken):
            if touched and ids.isdisjoint(touched) and not any(_overlap(edit, other) for other in made):
                made.append(edit)
                ids |= touched
                break
    return packed


def _overlap(one: Edit, other: Edit) -> bool:
    a, b = one.change, other.change
    return one.file == other.file and a.start <= b.end and b.start <= a.end


def _in_function(source: Source, function: Any, kernel: bool, host: bool) -> Iterator[tuple[str, Change]]:
    for node in expressions(code(function)):
        for kind, rewrite in REWRITES.items():
            new = rewrite(copy.deepcopy(node))
            if new is not None:
                kind = "function of a launcher" if host else kind
                yield (
                    kind,
                    source.replace(node, f"({ast.unparse(new)})" if isinstance(new, _LOOSE) else ast.unparse(new)),
                )
    if host or not isinstance(function, Function):
        return
    arguments = function.args
    for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
        new = _number(copy.deepcopy(default))
        if new is not None:
            yield "default value", source.replace(default, ast.unparse(new))
    for decorator in function.decorator_list:
        yield from _in_decorator(source, decorator, function, kernel)


_LOOSE = (ast.BinOp, ast.Compare)


def _in_decorator(source: Source, decorator: Any, function: Function, kernel: bool) -> Iterator[tuple[str, Change]]:
    if ast.unparse(decorator) == "triton.jit":
        first = function.args.args[0].arg if function.args.args else ""
        option = f"do_not_specialize=['{first}']" if kernel else "noinline=True"
        yield option.partition("=")[0], source.replace(decorator, f"triton.jit({option})")
    elif isinstance(decorator, ast.Call):
        for keyword in decorator.keywords:
            if keyword.arg == "configs":
                for node in expressions([keyword.value]):
                    new = _number(copy.deepcopy(node))
                    if new is not None and isinstance(new.value, int):
                        yield "configuration", source.replace(node, ast.unparse(new))


def _constants(source: Source) -> Iterator[tuple[str, Change]]:
    """Numbers, and names of Triton's, on the right of an assignment in a module or class."""
    bodies = [source.tree.body, *[s.body for s in source.tree.body if isinstance(s, ast.ClassDef)]]
    for statement in [s for body in bodies for s in body if isinstance(s, ast.Assign)]:
        target = statement.targets[0]
        for node in expressions([statement.value]):
            for rewrite in (_number, _other_builtin):
                new = rewrite(copy.deepcopy(node))
                if new is not None and isinstance(target, ast.Name):
                    yield target.id, source.replace(node, ast.unparse(new))


# --- how one node is changed; None where it is not of that kind


def _number(node: Any) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        node.value = (not value) if isinstance(value, bool) else value * 2 if value > 3 else value + 1
        return node
    return None


def _sign(node: Any) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node
    return None


def _bound(node: Any) -> Any:
    other = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
             ast.Is: ast.IsNot, ast.IsNot: ast.Is}  # fmt: skip
    if isinstance(node, ast.Compare) and type(node.ops[0]) in other:
        node.ops[0] = other[type(node.ops[0])]()
        return node
    return None


def _mask(node: Any) -> Any:
    if isinstance(node, ast.Call) and any(k.arg == "mask" for k in node.keywords):
        node.keywords = [k for k in node.keywords if k.arg not in ("mask", "other")]
        return node
    return None


def _other_builtin(node: Any) -> Any:
    if isinstance(node, ast.Attribute) and node.attr in OTHER:
        node.attr = OTHER[node.attr]
        return node
    return None


_PAIRS = ("exp log", "exp2 log2", "sqrt rsqrt", "sin cos", "max min", "maximum minimum", "floor ceil", "argmax argmin",
          "float32 float16", "int32 int64", "tanh erf", "program_id num_programs")  # fmt: skip
OTHER = {a: b for pair in map(str.split, _PAIRS) for a, b in (pair, pair[::-1])}
"""For a name of Triton's another one that takes the same arguments."""

REWRITES: dict[str, Callable[[Any], Any]] = {
    "number": _number, "sign": _sign, "comparison": _bound, "mask": _mask, "builtin": _other_builtin,
}  # fmt: skip
