"""Programs drawn at random, each with blanks that say what may be edited in it.

A blank has several fillings. Filling a *meaning* blank otherwise may change what the program
does, and an oracle says whether it did; filling a *spelling* blank otherwise never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

MEANING = "meaning"
SPELLING = "spelling"


@dataclass(frozen=True)
class Blank:
    """One place that can be edited; the program as drawn has the first filling."""

    kind: str
    fillings: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Files whose names and texts hold blanks, each written as `<number>` between marks."""

    files: dict[str, str]
    blanks: tuple[Blank, ...]

    def version(self, filled: dict[int, str] | None = None) -> dict[str, str]:
        """The files as drawn, or with some blanks filled otherwise."""
        files = dict(self.files)
        for number, blank in reversed(list(enumerate(self.blanks))):  # a filling may hold older blanks
            filling = (filled or {}).get(number, blank.fillings[0])
            files = {k.replace(_mark(number), filling): v.replace(_mark(number), filling) for k, v in files.items()}
        return files

    def edits(self, kind: str) -> st.SearchStrategy[dict[int, str]]:
        """One blank of `kind` filled otherwise; for spelling, any number of them."""
        choices = [(n, f) for n, blank in enumerate(self.blanks) if blank.kind == kind for f in blank.fillings[1:]]
        if kind == MEANING:
            return st.sampled_from(choices).map(lambda choice: dict([choice]))
        return st.lists(st.sampled_from(choices), min_size=1, max_size=6).map(dict)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("\n".join(f"--- {name}\n{text}" for name, text in self.version().items()))


def _mark(number: int) -> str:
    return f"\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}{number}\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}"


@dataclass
class Module:
    """A file being written: its imports, then its definitions in order."""

    name: str
    imports: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def text(self, head: str) -> str:
        """The file."""
        return "\n".join([head, *dict.fromkeys(self.imports), *self.lines, ""])


@dataclass(frozen=True)
class Thing:
    """Something defined in `module` that expressions may name; `use` writes the expression around its name."""

    module: int
    name: str
    use: Callable[[str], str]


class Draft:
    """A program being drawn. Things may be named in their own module, later on, and in every later module."""

    def __init__(self, draw: Any, count: int) -> None:
        self.draw = draw
        self.blanks: list[Blank] = []
        self.modules = [Module(self.spelling(f"mod{n}", f"moved{n}")) for n in range(count)]
        self.things: list[Thing] = []

    def pick(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return self.draw(st.sampled_from(options))  # type: ignore[no-any-return]

    def chance(self) -> bool:
        """Yes or no."""
        return bool(self.draw(st.booleans()))

    def blank(self, kind: str, fillings: Sequence[str]) -> str:
        """Text that stands for a new blank."""
        self.blanks.append(Blank(kind, tuple(fillings)))
        return _mark(len(self.blanks) - 1)

    def meaning(self, *fillings: str) -> str:
        """A meaning blank; which filling comes first is drawn."""
        first = self.draw(st.integers(0, len(fillings) - 1))
        return self.blank(MEANING, [*fillings[first:], *fillings[:first]])

    def spelling(self, *fillings: str) -> str:
        """A spelling blank, with the first filling in the program as drawn."""
        return self.blank(SPELLING, fillings)

    def name(self, wanted: str) -> str:
        """A name that may be changed, unlike any other."""
        number = len(self.blanks)
        return self.spelling(f"{wanted}_{number}", f"renamed_{number}")

    def remark(self, indent: str = "    ") -> str:
        """A line that means nothing."""
        return indent + self.spelling("", "# a remark", "'A text.'") + "\n"

    def define(self, module: int, name: str, text: str, use: Callable[[str], str]) -> Thing:
        """Add a definition."""
        self.modules[module].lines.append(self.spelling("", "\n\nUNRELATED = object()\n", "\n# a remark\n") + text)
        thing = Thing(module, name, use)
        self.things.append(thing)
        return thing

    def reach(self, thing: Thing, module: int) -> str:
        """An expression in `module` that names `thing`, by one of the ways that Python has."""
        if thing.module == module:
            return thing.use(thing.name)
        home, here = self.modules[thing.module].name, self.modules[module]
        way = self.pick(("attribute", "from", "alias", "module alias"))
        if way == "attribute":
            here.imports.append(f"import {home}")
            return thing.use(f"{home}.{thing.name}")
        if way == "from":
            here.imports.append(f"from {home} import {thing.name}")
            return thing.use(thing.name)
        alias = self.name("alias")
        if way == "alias":
            here.imports.append(f"from {home} import {thing.name} as {alias}")
            return thing.use(alias)
        here.imports.append(f"import {home} as {alias}")
        return thing.use(f"{alias}.{thing.name}")

    def program(self, head: str, last: str) -> Program:
        """What was drawn. The last module's file is called `last`."""
        names = [*[m.name for m in self.modules[:-1]], last]
        files = {f"{name}.py": module.text(head) for name, module in zip(names, self.modules)}
        return Program(files, tuple(self.blanks))
