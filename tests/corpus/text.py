"""A source file and changes to it, addressed by the nodes of its tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

Function = ast.FunctionDef


class Change(NamedTuple):
    """Bytes `start` to `end` of a file replaced."""

    start: int
    end: int
    text: str


class Source:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.tree = ast.parse(self.data)

    @cached_property
    def lines(self) -> list[int]:
        """Where each line starts, and where the file ends."""
        starts = [0]
        for line in self.data.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    @cached_property
    def functions(self) -> dict[int, Function | ast.Lambda]:
        """By first line, decorators included; a line with several lambdas has none."""
        found: dict[int, Any] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                found[min([node.lineno, *(d.lineno for d in node.decorator_list)])] = node
            elif isinstance(node, ast.Lambda):
                found[node.lineno] = None if isinstance(found.get(node.lineno), ast.Lambda) else node
        return {line: node for line, node in found.items() if node is not None}

    def start(self, node: Any) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: Any) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def replace(self, node: Any, text: str) -> Change:
        """`node` replaced by `text`."""
        return Change(self.start(node), self.end(node), text)

    def before(self, statement: Any, text: str) -> Change | None:
        """`text` on a line of its own before `statement`; None if that does not start a line."""
        line = self.lines[statement.lineno - 1]
        indent = self.data[line : self.start(statement)]
        return None if indent.strip() else Change(line, line, f"{indent.decode()}{text}\n" if text else "\n")

    @cached_property
    def after_imports(self) -> int | None:
        """Where the first statement ends that is followed by something else than an import."""
        at = None
        for statement in self.tree.body:
            if not isinstance(statement, (ast.Import, ast.ImportFrom)) and not is_text(statement):
                break
            at = self.lines[statement.end_lineno or 0]
        return at


def changed(data: bytes, changes: Iterable[Change]) -> bytes:
    """`data` with changes that do not overlap."""
    for change in sorted(changes, reverse=True):
        data = data[: change.start] + change.text.encode() + data[change.end :]
    return data


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a string by itself."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def code(function: Function | ast.Lambda) -> list[Any]:
    """Statements of a function without its docstring, or the expression of a lambda."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    return function.body[1:] if is_text(function.body[0]) else function.body


def expressions(tops: Iterable[Any]) -> Iterator[Any]:
    """Every node below `tops` that can be edited: annotations and f-strings are left out."""
    todo = list(tops)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        yield node
        todo += [
            n
            for n in ast.iter_child_nodes(node)
            if n not in (getattr(node, "annotation", 0), getattr(node, "returns", 0))
        ]
