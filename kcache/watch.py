"""What a fingerprint has read, and whether all of it still reads the same.

A `Watch` is filled while a closure is walked: each name looked up, each cell, code object
and default, each mutable container. `holds` reads everything once more and compares by
identity, which is value and type for immutable things; strong references are held, so no
identity is used twice. A container that was changed and changed back holds; one whose
elements were replaced by equal ones does not, which costs a new walk and nothing else.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "unbound"})()
"""Stands for a name or a cell that is not bound."""


class Watch:
    """Everything that one walk has read."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._functions: list[tuple[types.FunctionType, types.CodeType, Any, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._contents: list[tuple[Callable[[], Iterable[Any]], list[Any]]] = []
        self._keys: list[tuple[Mapping[str, Any], frozenset[str]]] = []
        self._calls: list[tuple[Callable[[], Any], Any]] = []

    def name(self, namespace: Mapping[str, Any], key: str) -> Any:
        """`namespace[key]`, or `MISSING`."""
        value = namespace.get(key, MISSING)
        if (id(namespace), key) not in self._seen:
            self._seen.add((id(namespace), key))
            self._names.append((namespace, key, value))
        return value

    def attribute(self, holder: Any, key: str) -> Any:
        """`getattr(holder, key)`, or `MISSING`; for what is in no plain dictionary."""
        value = read(holder, key)
        self._attributes.append((holder, key, value))
        return value

    def cell(self, cell: types.CellType) -> Any:
        """Content of a closure cell, or `MISSING`."""
        value = content(cell)
        self._cells.append((cell, value))
        return value

    def function(self, fn: types.FunctionType) -> None:
        """`fn`'s code and defaults. The content of keyword defaults is watched too."""
        self._functions.append((fn, fn.__code__, fn.__defaults__, fn.__kwdefaults__))
        if fn.__kwdefaults__:
            self.dictionary(fn.__kwdefaults__)

    def dictionary(self, value: Mapping[Any, Any]) -> None:
        """Keys, values and their order."""
        self._contents.append((lambda: _pairs(value), _pairs(value)))

    def sequence(self, value: Iterable[Any]) -> None:
        """Elements and their order."""
        self._contents.append((lambda: value, list(value)))

    def content(self, value: Any, read: Callable[[Any], Any]) -> Any:
        """`read(value)`, a plain container or an immutable thing that stands for what `value` holds."""
        now = read(value)
        if isinstance(now, dict):
            self._contents.append((lambda: _pairs(read(value)), _pairs(now)))
        elif isinstance(now, (list, tuple, set, bytearray)):
            self._contents.append((lambda: read(value), list(now)))
        return now

    def keys(self, namespace: Mapping[str, Any], known: Iterable[str]) -> None:
        """That `namespace` holds no key outside `known`."""
        self._keys.append((namespace, frozenset(known)))

    def call(self, read: Callable[[], Any]) -> Any:
        """Result of a function that reads a process-wide switch."""
        value = read()
        self._calls.append((read, value))
        return value

    def holds(self) -> bool:
        """Whether everything reads as it did."""
        for namespace, key, value in self._names:
            if namespace.get(key, MISSING) is not value:
                return False
        for fn, code, defaults, kwdefaults in self._functions:
            if fn.__code__ is not code or fn.__defaults__ is not defaults or fn.__kwdefaults__ is not kwdefaults:
                return False
        for cell, value in self._cells:
            if content(cell) is not value:
                return False
        for elements, before in self._contents:
            if not _same(elements(), before):
                return False
        for namespace, known in self._keys:
            if not namespace.keys() <= known:
                return False
        return self._slow_reads_hold()

    def _slow_reads_hold(self) -> bool:
        for holder, key, value in self._attributes:
            if read(holder, key) is not value:
                return False
        for function, value in self._calls:
            now = function()
            if type(now) is not type(value) or now != value:
                return False
        return True


def _pairs(value: Mapping[Any, Any]) -> list[Any]:
    return [*value, *value.values()]


def _same(now: Iterable[Any], before: list[Any]) -> bool:
    current = now if isinstance(now, list) else list(now)
    return len(current) == len(before) and all(map(is_, current, before))


def content(cell: types.CellType) -> Any:
    """What the cell holds, or `MISSING`."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def read(holder: Any, key: str) -> Any:
    """`getattr` that takes every failure for absence."""
    try:
        return getattr(holder, key)
    except Exception:
        return MISSING
