"""What processes did, in the store: a row for each of the last runs, and sums over all of them.

Functions of one transaction; `Store` gives them theirs. The sums are two tables of decimals:
`counters` by layer and outcome, and in it, behind a second zero byte, by reason too. Reasons
hold names from programs, so there is a bound on how many are kept apart.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from .rows import Transaction

MAX_RUNS = 1000
MAX_REASONS = 500
"""Reasons kept apart over the life of a store; later ones are summed as `OTHER`."""
MAX_REASON = 200
OTHER = "other reasons"


def add(txn: Transaction, run: Mapping[str, Any], now_ns: int) -> None:
    """Append a run, drop the oldest past `MAX_RUNS`, and add its counts to the sums."""
    data = json.dumps(dict(run), sort_keys=True).encode()
    txn.put("runs", struct.pack(">QI", now_ns, os.getpid() & 0xFFFFFFFF), data)
    excess = txn.entries("runs") - MAX_RUNS
    if excess > 0:
        for row, _ in list(txn.rows("runs", b"", limit=excess)):
            txn.remove_row("runs", row)
    for name, n in _sums(run):
        _add(txn, name.encode(), n)
    for item in run.get("reasons", ()):
        _add_reason(txn, item)


def runs(txn: Transaction, limit: int) -> tuple[list[dict[str, Any]], int]:
    """The last `limit` runs, newest first, and how many of them are not JSON."""
    rows = [data for _, data in txn.rows("runs", b"")]
    found: list[dict[str, Any]] = []
    damaged = 0
    for data in reversed(rows[-limit:]):
        try:
            found.append(json.loads(data))
        except ValueError:
            damaged += 1
    return found, damaged


def counters(txn: Transaction) -> dict[str, dict[str, int]]:
    """Layer to outcome (and `saved_ns`) to count."""
    sums: dict[str, dict[str, int]] = {}
    for names, n in _rows(txn):
        if len(names) == 2:
            sums.setdefault(names[0], {})[names[1]] = n
    return sums


def reasons(txn: Transaction) -> dict[tuple[str, str, str], int]:
    """(layer, outcome, reason) to count."""
    return {(names[0], names[1], names[2]): n for names, n in _rows(txn) if len(names) == 3}


def _rows(txn: Transaction) -> Iterator[tuple[list[str], int]]:
    for row, data in txn.rows("counters", b""):
        if data.isdigit():
            yield row.decode(errors="replace").split("\0", 2), int(data)


def _sums(run: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Rows of the table of counters to which `run` adds, and how much."""
    for layer, counts in run.get("layers", {}).items():
        yield from ((f"{layer}\0{outcome}", n) for outcome, n in counts.items())
    yield from ((f"{layer}\0saved_ns", n) for layer, n in run.get("saved_ns", {}).items())


def _add_reason(txn: Transaction, item: Mapping[str, Any]) -> None:
    start = f"{item['layer']}\0{item['outcome']}\0"
    row = (start + str(item["reason"])).encode()[:MAX_REASON]
    if txn.get("counters", row) is None and txn.entries("counters") >= MAX_REASONS:
        row = (start + OTHER).encode()
    _add(txn, row, int(item["count"]))


def _add(txn: Transaction, row: bytes, n: int) -> None:
    old = txn.get("counters", row) or b"0"
    txn.put("counters", row, str((int(old) if old.isdigit() else 0) + n).encode())
