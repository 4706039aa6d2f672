"""Where a function of a linked text came from, statement by statement.

A linked text is laid out anew, so a line of it is none of the program's. Both hold the same
statements in the same order, and by its number each is found in the program's file.
"""

from __future__ import annotations

import ast
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """The function of the program that a function of a linked text is."""

    name: str
    """`module.qualname`."""
    file: str
    lines: tuple[int, ...]
    """Line in `file` of each statement, the `def` itself first."""

    def line(self, text: str, line: int) -> int:
        """The line in `file` of what stands in line `line` of `text`, the function as it was printed."""
        number = 0
        for position, each in enumerate(statements(ast.parse(textwrap.dedent(text)).body[0])):
            if each.lineno <= line:
                number = position
        return self.lines[min(number, len(self.lines) - 1)]


def of(value: Any, fn: types.FunctionType, function: ast.FunctionDef) -> Origin:
    """The origin of `fn`, whose text as `value` has it was parsed into `function`.

    A jitted function's text begins at its `def`, a Python function's at its first decorator.
    """
    first = fn.__code__.co_firstlineno
    if (raw := getattr(value, "raw_src", None)) is not None:
        first = value.starting_line_number + len(raw) - len(value.src.splitlines())
    lines = tuple(first + each.lineno - 1 for each in statements(function))
    return Origin(f"{fn.__module__}.{fn.__qualname__}", fn.__code__.co_filename, lines)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """`node` if it is a statement and all below it, in the order of the text."""
    if isinstance(node, ast.stmt):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from statements(child)
