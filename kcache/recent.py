"""The newest entries of each kind, so that the nearest one to a miss is found without a scan.

A row of the table `recent` lists up to `KEPT` keys of one layer, newest last, that share a
part named in `SHARED`, or a kernel's name, or only the layer. Rows are functions of the part list, so they are
taken away with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .digest import SIZE, Digest, Key

TABLE = "recent"
KEPT = 8
SHARED = ("graph", "source", "text", "name")
"""Parts that say what is compiled rather than how or where: graphs, generated code, a tuning result's name."""


def rows_of(layer: str, parts: Iterable[tuple[str, Digest]]) -> list[bytes]:
    """Rows under which an entry with these parts (name, digest) stands; the most alike first."""
    found: list[str] = []
    for name, digest in parts:
        if name in SHARED:
            found.insert(0, f"{name} {digest.hex}")
        elif name.startswith("kernel "):
            found.append(f"kernel {name.split(' ', 2)[-1]}")
    return [Digest.of(f"{layer}\0{hint}".encode()).raw for hint in dict.fromkeys([*found, "any"])]


def note(txn: Any, layer: str, key: Key, parts: Iterable[tuple[str, Digest]]) -> None:
    """Put `key` last in its rows. `txn` is a writing `rows.Transaction`."""
    for row in rows_of(layer, parts):
        held = [k for k in _keys(txn, row) if k != key.raw]
        txn.put(TABLE, row, b"".join([*held, key.raw][-KEPT:]))


def forget(txn: Any, layer: str, key: Key, parts: Iterable[tuple[str, Digest]]) -> None:
    """Take `key` out of its rows."""
    for row in rows_of(layer, parts):
        held = [k for k in _keys(txn, row) if k != key.raw]
        if held:
            txn.put(TABLE, row, b"".join(held))
        else:
            txn.remove_row(TABLE, row)


def like(txn: Any, layer: str, parts: Iterable[tuple[str, Digest]]) -> Iterator[Key]:
    """Keys that share a row with these parts: the most alike first, then the newest first."""
    seen: dict[bytes, None] = {}
    for row in rows_of(layer, parts):
        seen |= dict.fromkeys(reversed(_keys(txn, row)))
    return map(Key, seen)


def _keys(txn: Any, row: bytes) -> list[bytes]:
    data = txn.get(TABLE, row) or b""
    return [data[at : at + SIZE] for at in range(0, len(data) - SIZE + 1, SIZE)]
