"""Which types and constants a kernel can be compiled for, found by trying.

The first guess comes from how each parameter is used and called. Where Triton refuses it,
the parameters that flow into the line that it names are guessed anew.
"""

from __future__ import annotations

import ast
import random
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.ttir import lower

ATTEMPTS = 120
ONE_S = 3.0
"""Seconds that one attempt may take: a large unrolled loop takes minutes."""


class Signature(NamedTuple):
    """Arguments of `tests.ttir.lower`."""

    types: dict[str, str]
    constants: dict[str, Any]


class TooLong(Exception):
    """An attempt took more than its time."""


def lowered(jit: Any, signature: Signature, seconds: float = ONE_S) -> str:
    """TTIR of `jit`. Raises what Triton raises, and `TooLong`."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return lower(jit, signature.types, signature.constants)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise TooLong


def find(jit: Any, launchers: list[Any], seconds: float) -> tuple[Signature, str] | None:
    """A signature under which `jit` can be lowered, and what it is lowered to; None if none is found in time."""
    chance = random.Random(jit.fn.__qualname__)
    use = _Use(jit)
    guesses = {p.name: list(_guesses(p, use, launchers)) for p in jit.params}
    best, furthest = dict.fromkeys(guesses, 0), 0
    picked, end = dict(best), time.monotonic() + seconds
    for attempt in range(1, ATTEMPTS):
        if time.monotonic() > end:
            return None
        made = Signature({}, {})
        for name, number in picked.items():
            guess = guesses[name][number % len(guesses[name])]
            if isinstance(guess, str):
                made.types[name] = guess
            else:
                made.constants[name] = guess[0]
        try:
            return made, lowered(jit, made, min(ONE_S, max(0.2, end - time.monotonic())))
        except BaseException as error:
            line = getattr(getattr(error, "node", None), "lineno", 0)
        if attempt % 40 == 0:
            best, furthest = dict.fromkeys(guesses, 0), 0
        elif line >= furthest:
            best, furthest = picked, line
        picked = dict(best)
        names = sorted(use.feeding(furthest) & set(guesses)) or sorted(guesses)
        if chance.random() < 0.15:
            names = sorted(guesses)
        for name in chance.sample(names, min(len(names), chance.choice((1, 1, 2)))):
            picked[name] = min(chance.randrange(len(guesses[name])), chance.randrange(len(guesses[name])))
        if chance.random() < 0.15:  # operands of a dot must have one type
            picked |= {n: g.index("*fp16") for n, g in guesses.items() if "*fp16" in g}
    return None


class _Use:
    """How the parameters of a kernel flow through its text."""

    def __init__(self, jit: Any, depth: int = 3) -> None:
        tree = ast.parse(jit.src)
        self.pointers: set[str] = set()
        self.flow: dict[str, set[str]] = {}
        self.lines: list[tuple[int, int, set[str]]] = []
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in {n for t in targets for n in _names(t)}:
                    self.flow.setdefault(name, set()).update(_names(node.value))
            if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.For, ast.While, ast.If)):
                self.lines.append((node.lineno, node.end_lineno or node.lineno, _names(node)))
            if isinstance(node, ast.Call):
                self.call(node, jit, depth)
        for _ in range(4):
            self.pointers |= {n for p in self.pointers for n in self.addressed.get(p, ())}

    addressed: dict[str, set[str]]

    def call(self, node: ast.Call, jit: Any, depth: int) -> None:
        """The first argument of a load or store is an address; so is what a helper uses as one."""
        if not hasattr(self, "addressed"):
            self.addressed = {}
            for n in ast.walk(ast.parse(jit.src)):
                if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
                    self.addressed.setdefault(n.targets[0].id, set()).update(_bases(n.value))
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _ACCESSES or name.startswith("atomic_"):
            given = node.args[:1] or [k.value for k in node.keywords if k.arg in ("base", "pointer")]
            self.pointers |= {n for g in given for n in _bases(g)}
        elif depth and hasattr(helper := jit.fn.__globals__.get(name), "src") and hasattr(helper, "arg_names"):
            inner = _Use(helper, depth - 1).pointers
            pairs = [*zip(helper.arg_names, node.args), *((k.arg, k.value) for k in node.keywords)]
            self.pointers |= {n for parameter, given in pairs if parameter in inner for n in _bases(given)}

    def feeding(self, line: int) -> set[str]:
        """Names that flow into a line."""
        found: set[str] = set()
        todo = [n for start, end, names in self.lines if start <= line <= end for n in names]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.flow.get(name, ())
        return found


_ACCESSES = frozenset({"load", "store", "make_block_ptr", "make_tensor_descriptor"})


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _bases(node: ast.AST) -> Iterator[str]:
    """Names that may be the pointer in an address."""
    if isinstance(node, ast.BinOp):
        yield from _bases(node.left)
        if isinstance(node.op, ast.Add):
            yield from _bases(node.right)
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _bases(node.func.value)


def _guesses(parameter: Any, use: _Use, launchers: list[Any]) -> Iterator[Any]:
    """Guesses for one parameter, the likely first: a type, or a constant in a tuple."""
    name = parameter.name
    if not parameter.is_constexpr:
        if parameter.annotation_type:
            yield parameter.annotation_type
        if name in use.pointers or name.endswith("_ptr"):
            index = any(word in name.lower() for word in ("idx", "ind", "offset", "lens", "label", "target", "ids"))
            yield from ["*i32", "*i64"] if index else []
            yield from ["*fp32", "*fp16", "*i32", "*i64", "*bf16", "*u8", "*i1", (None,), "i64"]
        else:
            real = any(word in name.lower() for word in _REAL)
            yield from ["fp32", "i32"] if real else ["i32", "fp32"]
            yield from ["*fp32", "*i32", (None,), "i1", "i64", "*fp16"]
        return
    for launcher in launchers:
        for config in getattr(launcher, "configs", [])[:4]:
            if name in config.all_kwargs():
                yield (config.all_kwargs()[name],)
    if parameter.has_default:
        yield (parameter.default,)
    if "dtype" in name.lower() or name.lower().endswith("type"):
        yield from _dtypes()
    if name.upper().startswith(_FLAGS):
        yield from [(False,), (True,)]
    yield from [
        (16,),
        (32,),
        (64,),
        (128,),
        (True,),
        (False,),
        (1,),
        (None,),
        (4,),
        (2,),
        (0,),
        (8,),
        ("ieee",),
        ("",),
        (1.0,),
    ]
    yield from _dtypes()


def _dtypes() -> Iterator[tuple[Any]]:
    import triton.language as tl

    yield from [(tl.float32,), (tl.float16,), (tl.int32,)]


_REAL = (
    "eps",
    "scale",
    "alpha",
    "beta",
    "gamma",
    "lr",
    "dropout",
    "softcap",
    "decay",
    "smoothing",
    "weight",
    "temperature",
)
_FLAGS = (
    "IS_",
    "USE_",
    "HAS_",
    "DO_",
    "STORE_",
    "SAVE_",
    "OUTPUT_",
    "REVERSE",
    "CAUSAL",
    "RETURN_",
    "NEED_",
    "APPLY_",
    "ENABLE_",
)
