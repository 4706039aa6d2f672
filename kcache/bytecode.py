"""A plain Python function as it is loaded: the canonical form of its code object.

What runs is the code object and not the file, which may have been edited since or may not
exist, so the file is never read. In the listing there are no file names, line numbers,
docstrings, layout, or names of functions; locals other than parameters are numbered by
first use, jumps go to numbered labels, constants stand where they are loaded. What comes
from outside is `$0`, `$1`, … as in `kcache.source`: globals, closure variables and
modules imported in the body, each with its attribute chain.

The listing belongs to one Python minor version, and so do keys. A few expressions that stand
on several lines (`a and b or c`; in 3.12, comprehensions with conditions) are compiled to
other jumps than on one line: these have two listings.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from kcache.constants import encode, refuse
from kcache.scope import Ref
from kcache.source import Text, remembered

VERSION = f"bytecode 2 {sys.version_info[0]}.{sys.version_info[1]}"

IMPORT = "import "
"""Prefix of a reference's root that is a module imported in the body, not a name."""

LITERAL = "("
"""Prefix of a last attribute that is none: the string that the chain is called or indexed with where it stands."""

_FLAGS = (
    inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR
)  # fmt: skip
_SKIPPED = frozenset({"NOP", "CACHE", "EXTENDED_ARG", "RESUME", "COPY_FREE_VARS", "MAKE_CELL"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def analyse(code: types.CodeType) -> Text:
    """Facts of a code object; `body` is its listing."""
    return remembered(f"{VERSION}\n{raw(code)}".encode(), lambda: _analyse(code))


def raw(code: types.CodeType) -> str:
    """Everything in `code` that the listing is made from. Cheap, and finer than the listing."""
    constants = [raw(c) if isinstance(c, types.CodeType) else encode(c, _nested) for c in code.co_consts]
    table = raw_table(code)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    return f"{counts}{code.co_code!r}{table!r}{names}{constants}"


def raw_table(code: Any) -> bytes:
    """The exception table, which Python 3.10 does not have."""
    return bytes(getattr(code, "co_exceptiontable", b""))


def _entries(code: types.CodeType) -> Any:
    return getattr(dis.Bytecode(code), "exception_entries", None) or ()


def _nested(value: Any) -> str:
    return raw(value) if isinstance(value, types.CodeType) else refuse(value)


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """Names of all parameters, `*args` and `**kwargs` last."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _analyse(code: types.CodeType) -> Text:
    lister = _Lister()
    lister.code(code, frozenset(code.co_freevars), {})
    return Text(code.co_name, "\n".join(lister.lines), tuple(lister.refs))


class _Step(NamedTuple):
    op: str
    value: Any
    number: int | None
    target: bool
    """Whether something jumps here."""


class _Lister:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refs: dict[Ref, int] = {}
        self.numbers: dict[str, str] = {}

    def code(self, code: types.CodeType, free: frozenset[str], outer: dict[str, Ref], indent: str = "") -> None:
        """List `code`. `free`: closure variables of the outermost function; `outer`: modules imported around it."""
        kept = parameters(code)
        header = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
        self.lines.append(f"{indent}code{header}({', '.join(kept)})")
        steps, labels, table = _steps(code)
        own = _imported(steps)
        for name, ref in _imports(steps):  # a module that is not tracked through a local is referred to as a whole
            if name not in own:
                self.lines.append(f"{indent}  {self.ref(ref)}")
        here = _Here(
            steps,
            labels,
            free,
            {n: r for n, r in outer.items() if n in code.co_freevars} | own,
            frozenset(kept),
            indent,
        )
        at = 0
        while at < len(steps):
            if steps[at].target:
                self.lines.append(f"{indent}{labels[at]}:")
            at = self.step(code, here, at)
        self.lines.extend(f"{indent}{line}" for line in table)
        if code.co_cellvars:
            cells = sorted([self.local(name, here) for name in code.co_cellvars])
            self.lines.append(f"{indent}cells {' '.join(cells)}")

    def step(self, code: types.CodeType, here: _Here, at: int) -> int:
        """List one step, or a whole chain; returns the position after it."""
        s = here.steps[at]
        if s.op == "LOAD_CLOSURE" or (
            s.op in ("LOAD_FAST", "LOAD_FAST_BORROW") and s.value in code.co_cellvars + code.co_freevars
        ):
            return at + 1  # cells for a function made here, in the order of their names; that function lists them
        if isinstance(s.value, str) and s.op == "LOAD_CONST" and here.steps[at + 1].op == "MAKE_FUNCTION":
            return at + 1  # its qualified name, in Python 3.10
        root = _root(s, here.free, here.aliases)
        if (
            root is not None
            and s.op != "LOAD_GLOBAL"
            and any(x.op == "STORE_NAME" and x.value == s.value for x in here.steps)
        ):
            self.ref(Ref(s.value, (), True))  # a class body's own name, or the global until it is assigned
            root = None
        if root is not None:
            end, attrs = _attributes(here.steps, at + 1)
            end, attrs = self.literal_getattr(here.steps, at, end, attrs)
            attrs += _literal(here.steps, end, (root.root, *root.attrs, *attrs)[-1])
            self.lines.append(f"{here.indent}  {self.ref(Ref(root.root, root.attrs + attrs))}")
            return end
        self.lines.append(f"{here.indent}  {s.op} {self.argument(s, here)}".rstrip())
        if s.op in _CONSTANTS and isinstance(s.value, types.CodeType):
            inner = here.free - set(code.co_cellvars)
            self.code(s.value, inner & set(s.value.co_freevars), here.aliases, here.indent + "    ")
        return at + 1

    def ref(self, ref: Ref) -> str:
        return f"${self.refs.setdefault(ref, len(self.refs))}"

    def literal_getattr(
        self, steps: list[_Step], at: int, end: int, attrs: tuple[str, ...]
    ) -> tuple[int, tuple[str, ...]]:
        """`getattr(chain, "name")` is read as one more attribute of the chain."""
        before = steps[at - 1] if at else None
        if before is None or before.op not in _GLOBAL or before.value != "getattr" or end >= len(steps):
            return end, attrs
        literal = steps[end]
        if literal.op == "LOAD_CONST" and isinstance(literal.value, str) and not literal.target:
            return end + 1, (*attrs, literal.value)
        return end, attrs

    def argument(self, s: _Step, here: _Here) -> str:
        if s.number is None or isinstance(s.value, types.CodeType):
            return ""
        if s.op in _CONSTANTS:
            return encode(s.value, _nested)
        if s.op in _LISTED_JUMPS:
            return here.labels[s.value]
        if s.op in _LOCALS or "_FAST" in s.op or s.op in _CELLS:
            return self.local(str(s.value), here)
        return str(s.value if s.op in _NAMES else s.number)

    def local(self, name: str, here: _Here) -> str:
        return name if name in here.parameters else self.numbers.setdefault(name, f"%{len(self.numbers)}")


class _Here(NamedTuple):
    """What the listing of one code object needs to know."""

    steps: list[_Step]
    labels: dict[int, str]
    free: frozenset[str]
    aliases: dict[str, Ref]
    parameters: frozenset[str]
    indent: str


def _undirected(op: str) -> str:
    return op.replace("_FORWARD", "").replace("_BACKWARD", "").replace("JUMP_ABSOLUTE", "JUMP") if "JUMP" in op else op


_CONSTANTS = frozenset(dis.opname[n] for n in dis.hasconst)
_JUMPS = frozenset(dis.opname[n] for n in [*dis.hasjrel, *dis.hasjabs])
_LISTED_JUMPS = frozenset(map(_undirected, _JUMPS))
_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT"})
_LOCALS = frozenset(dis.opname[n] for n in dis.haslocal)
_CELLS = frozenset(dis.opname[n] for n in dis.hasfree)
_NAMES = frozenset(dis.opname[n] for n in dis.hasname)


def _steps(code: types.CodeType) -> tuple[list[_Step], dict[int, str], list[str]]:
    """Instructions without fillers; labels by position; the exception table by labels.

    Whether a jump to a jump is made one jump depends on the lines on which the text stands, so
    each jump is listed with the place where it ends, and without its direction.
    """
    instructions = list(dis.get_instructions(code))
    position: dict[int, int] = {}
    listed: list[tuple[dis.Instruction, str, Any]] = []
    for i in instructions:
        position[i.offset] = len(listed)
        listed += [(i, op, value) for op, value in _split(i, code)] if i.opname not in _SKIPPED else []
    onward = {position[i.offset]: position[i.argval] for i in instructions if i.opname in _ALWAYS}
    ends = {i.offset: _end(position[i.argval], onward) for i in instructions if i.opname in _JUMPS}
    targets = set(ends.values())
    entries = _entries(code)
    for entry in entries:
        targets |= {position.get(x, len(listed)) for x in (entry.start, entry.end, entry.target)}
    labels = {at: f"L{n}" for n, at in enumerate(sorted(targets))}
    steps = [
        _Step(_undirected(op), ends.get(i.offset, value), i.arg, at in targets)
        for at, (i, op, value) in enumerate(listed)
    ]
    spans = [[labels[position.get(x, len(listed))] for x in (e.start, e.end, e.target)] for e in entries]
    table = [f"guard {' '.join(span)} {e.depth} {e.lasti}" for span, e in zip(spans, entries, strict=True)]
    if not entries and raw_table(code):
        table = [f"guard {raw_table(code)!r}"]
    return steps, labels, table


def _end(at: int, onward: dict[int, int]) -> int:
    """Where a jump to `at` ends, if there may be jumps."""
    seen = set()
    while at in onward and at not in seen:
        seen.add(at)
        at = onward[at]
    return at


def _split(i: dis.Instruction, code: types.CodeType) -> list[tuple[str, Any]]:
    """Python 3.13 fuses two loads or stores of locals into one instruction."""
    if isinstance(i.argval, tuple) and "_FAST" in i.opname:
        words = i.opname.split("_")
        half = len(words) // 2
        return [("_".join(words[:half]), i.argval[0]), ("_".join(words[half:]), i.argval[1])]
    if i.opname in _CONSTANTS and i.arg is not None:  # `dis` itself knows only some of these
        return [(i.opname, code.co_consts[i.arg])]
    return [(i.opname, i.argval)]


def _root(s: _Step, free: frozenset[str], aliases: dict[str, Ref]) -> Ref | None:
    """The reference that `s` loads, if it loads something from outside."""
    if s.op == "LOAD_GLOBAL":
        return Ref(s.value)
    if s.op in _GLOBAL:  # a class body, whose first statement reads `__name__`
        return None if s.value == "__name__" else Ref(s.value)
    if s.op in _FREE and s.value in free:
        return Ref(s.value)
    if s.op in _FREE or s.op.startswith("LOAD_FAST"):
        return aliases.get(s.value)
    return None


def _attributes(steps: list[_Step], at: int) -> tuple[int, tuple[str, ...]]:
    attrs: list[str] = []
    while at < len(steps) and steps[at].op in _ATTRIBUTE and not steps[at].target:
        attrs.append(steps[at].value)
        at += 1
    return at, tuple(attrs)


def _literal(steps: list[_Step], at: int, last: str) -> tuple[str, ...]:
    """The string in `environ["X"]`, `environ.get("X", …)` or `getenv("X", …)`, whose load ends at `at`.

    Without keywords, and with nothing but one load in place of the default value.
    """
    at += steps[at].op == "PUSH_NULL"
    after = [s for s in steps[at : at + 4] if s.op != "PRECALL"]
    if after[0].op != "LOAD_CONST" or not isinstance(after[0].value, str) or any(s.target for s in after[:3]):
        return ()
    if last == "environ":
        found = after[1].op == "BINARY_SUBSCR" or (after[1].op == "BINARY_OP" and after[1].number == _SUBSCRIPT)
    elif last in ("get", "getenv"):  # what is called with so many arguments is what was loaded before them
        found = _calls(after[1], 1) or (after[1].op.startswith("LOAD_") and _calls(after[2], 2))
    else:
        found = False
    return (LITERAL + after[0].value,) if found else ()


_SUBSCRIPT = 26
"""Argument of `BINARY_OP` for `a[b]`, which is an instruction of its own before Python 3.14."""


def _calls(s: _Step, arguments: int) -> bool:
    return s.op in ("CALL", "CALL_FUNCTION", "CALL_METHOD") and s.number == arguments


def _imported(steps: list[_Step]) -> dict[str, Ref]:
    """Locals that are bound once in all, by an import: `import a.b as x`, `from a import x`."""
    stored = Counter(s.value for s in steps if s.op.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_")))
    return {name: ref for name, ref in _imports(steps) if stored[name] == 1}


def _imports(steps: list[_Step]) -> Iterator[tuple[str, Ref]]:
    """Names that imports bind, `""` for a binding that is no local variable."""
    module, names = "", False
    for at, s in enumerate(steps[:-1]):
        after = steps[at + 1]
        if s.op == "IMPORT_NAME":
            module = "." * _level(steps[at - 2]) + s.value
            names = steps[at - 1].value is not None
            if not names:
                as_ = after.op == "IMPORT_FROM"
                yield _bound(steps, at + 1), Ref(IMPORT + (module if as_ else module.partition(".")[0]))
        elif names and s.op == "IMPORT_FROM" and after.op.startswith("STORE_"):
            yield _bound(steps, at + 1), Ref(IMPORT + module, (s.value,))


def _level(s: _Step) -> int:
    return s.value if s.op in ("LOAD_CONST", "LOAD_SMALL_INT") and isinstance(s.value, int) else 0


def _bound(steps: list[_Step], at: int) -> str:
    while steps[at].op in ("IMPORT_FROM", "SWAP", "ROT_TWO", "POP_TOP"):
        at += 1
    return steps[at].value if steps[at].op in ("STORE_FAST", "STORE_DEREF") else ""
