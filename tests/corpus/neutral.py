"""Edits that no kernel can notice, each made everywhere in a package at once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.corpus.program import Kernel
from tests.corpus.text import Change, Function, Source, changed, code, expressions, is_text

KINDS: dict[str, Callable[[Source, Function], list[Change] | None]] = {}
"""Edits of one function, by name. They are made in every function that a kernel reaches."""

FILES: dict[str, Callable[[Source], bytes | None]] = {}
"""Edits of a whole file, by name."""


def edited(tree: Path, kernels: Iterable[Kernel], kind: str) -> dict[str, bytes]:
    """Files of the version in which the edit `kind` was made wherever it applies."""
    lines = defaultdict(set)
    for kernel in kernels:
        for file, line in {kernel.own, *kernel.helpers}:
            if line:
                lines[file].add(line)
    files = {}
    for file in sorted(lines):
        source = Source(tree / file)
        if kind in FILES:
            new = FILES[kind](source)
        else:
            functions = [f for line in sorted(lines[file]) if isinstance(f := source.functions.get(line), Function)]
            new = changed(source.data, [c for f in functions for c in KINDS[kind](source, f) or ()])
        if new is not None and new != source.data:
            files[file] = new
    return files


def _statements(function: Function) -> list[Any]:
    """Statements on lines of their own."""
    return [s for s in code(function) if s.lineno > function.lineno]


def _comment(source: Source, function: Function) -> list[Change] | None:
    return [c for s in _statements(function)[-1:] if (c := source.before(s, "# a remark"))]


def _blank_line(source: Source, function: Function) -> list[Change] | None:
    return [c for s in _statements(function)[1:2] if (c := source.before(s, ""))]


def _docstring(source: Source, function: Function) -> list[Change] | None:
    first = function.body[0]
    if is_text(first):
        return [source.replace(first, '"""Another text."""')]
    return [c for s in [first] if s.lineno > function.lineno and (c := source.before(s, '"""A text."""'))]


def _parentheses(source: Source, function: Function) -> list[Change] | None:
    for statement in _statements(function):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.BinOp, ast.Call)):
            start, end = source.start(statement.value), source.end(statement.value)
            return [Change(start, start, "("), Change(end, end, ")")]
    return None


def _number_respelled(source: Source, function: Function) -> list[Change] | None:
    for node in expressions(_statements(function)):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return [source.replace(node, hex(node.value))]
    return None


def _local_renamed(source: Source, function: Function) -> list[Change] | None:
    nodes = list(ast.walk(function))
    kept = {n.arg for n in nodes if isinstance(n, ast.arg)}
    for node in nodes:
        if (
            isinstance(node, (ast.Lambda, ast.JoinedStr, ast.Global))
            or isinstance(node, Function)
            and node is not function
        ):
            return None
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id not in kept]
    if not stored:
        return None
    old = stored[len(stored) // 2]
    return [source.replace(n, f"{old}_renamed") for n in nodes if isinstance(n, ast.Name) and n.id == old]


def _header(source: Source) -> bytes | None:
    return b"# A header of\n# two lines.\n\n" + source.data


def _unrelated(source: Source) -> bytes | None:
    at = source.after_imports
    text = "\n\nUNRELATED_TO_ALL = 12345\n\n\ndef unrelated_to_all(x):\n    return x + UNRELATED_TO_ALL\n\n\n"
    return None if at is None else changed(source.data, [Change(at, at, text)])


def _printed_anew(source: Source) -> bytes | None:
    """Not where a string has several lines: Triton dedents a kernel's text, strings included."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            if not any(is_text(s) and s.value is node for s in ast.walk(source.tree) if isinstance(s, ast.Expr)):
                return None
    return ast.unparse(source.tree).encode()


def _moved_down(source: Source) -> bytes | None:
    """Jitted functions that no statement of the module names go to the end of the file, the last one first."""
    body = source.tree.body
    named = {
        n.id
        for s in body
        for top in ([*s.decorator_list, s.args] if isinstance(s, Function) else [s])
        for n in ast.walk(top)
        if isinstance(n, ast.Name)
    }
    cut = []
    for line, node in source.functions.items():
        if node in body and isinstance(node, Function) and node.decorator_list and node.name not in named:
            start, end = source.lines[line - 1], source.lines[node.end_lineno or 0]
            if sum(getattr(s, "name", "") == node.name for s in body) == 1:
                cut.append(Change(start, end, ""))
    if not cut:
        return None
    moved = [source.data[c.start : c.end] for c in reversed(cut)]
    return changed(source.data, cut).rstrip(b"\n") + b"\n\n\n" + b"\n\n".join(moved)


KINDS |= {
    "comment": _comment, "blank line": _blank_line, "docstring": _docstring, "parentheses": _parentheses,
    "number respelled": _number_respelled, "local renamed": _local_renamed,
}  # fmt: skip
FILES |= {
    "header added": _header, "unrelated code added": _unrelated, "file printed anew": _printed_anew,
    "kernels moved down": _moved_down,
}  # fmt: skip
