"""Read and verify everything in a store, say by layer and reason what is bad, and remove it.

`tree` walks LMDB's pages without mapping the file, which needs the store to itself. `verify`
then reads the entries of a store whose tree is sound: every record, every frame that one names,
every part list; and whether each frame is counted as often as it is named. Other processes may
use the store meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from . import database, datafile, place
from .digest import SIZE, Digest, Key
from .entry import Record, unpack_parts, unpack_record
from .errors import DAMAGE_UNREADABLE, Damaged, StoreError
from .evict import Row, groups
from .rows import CHUNK_ROW, VARIANT, Transaction, parse_row
from .store import Store, Stored

UNNAMED = "frame that nothing names"
MISCOUNTED = "frame counted wrongly"


@dataclass(frozen=True)
class Bad:
    """One entry that cannot be used. `id` is its row in the index."""

    id: bytes
    layer: str
    key: Key
    reason: str


@dataclass
class Report:
    """What was read and what is bad. `bytes` counts each frame once; `strays` counts frames that are named wrongly."""

    entries: int = 0
    bytes: int = 0
    bad: list[Bad] = field(default_factory=list)
    strays: Counter[str] = field(default_factory=Counter)

    @property
    def sound(self) -> bool:
        return not self.bad and not self.strays.total()


def tree(root: Path, *, repair: bool = False) -> tuple[list[str] | None, Path | None]:
    """What is wrong with the tree of the store in `root`, None if it is in use and cannot be walked; and where it was
    set aside, with `repair`. Raises `StoreError` if there is no store that may be used."""
    home = place.prepare(root, datafile.make, create=False, readonly=not repair)
    try:
        with database.alone(home):
            found = datafile.problems(home)
            return found, place.set_aside(home, place.identity(home)) if found and repair else None
    except StoreError as error:
        if error.reason not in ("in-use", "busy", "read-only", "not-permitted"):
            raise
        return None, None


def verify(store: Store) -> Report:
    """Read every entry of `store`, whose tree is sound. What is evicted meanwhile is passed over."""
    report = Report()
    frames: dict[Digest, str] = {}
    lists: dict[tuple[str, Key], str] = {}
    for item in store.scan():
        reason = item.damage if item.record is None else _content(store, item.record, frames, report)
        name = item.layer, item.key
        if name not in lists:
            lists[name] = _part_list(store, item)
        reason = reason or lists[name]
        if reason and store.fetch("index", item.id) is None:
            continue
        report.entries += 1
        if reason:
            report.bad.append(Bad(item.id, item.layer, item.key, reason))
    with store.transaction() as txn:
        strays = _strays(txn)
    report.strays += Counter({UNNAMED: len(strays.unnamed), MISCOUNTED: len(strays.counts) + len(strays.malformed)})
    return report


def repair(store: Store, report: Report) -> int:
    """Remove what `report` calls bad and all that is linked with it. Returns how many entries."""
    listed = list(store.scan())
    bad = {item.id for item in report.bad}
    linked = groups(Row(i.id, i.layer, i.key, i.used_ns, 0, i.record.links if i.record else ()) for i in listed)
    leaving = {row.id for group in linked if any(row.id in bad for row in group) for row in group}
    for item in listed:
        if item.id in bad:
            store.drop(item.layer, item.key, item.id[-VARIANT:], item.record)
    removed = len(leaving & bad) + store.delete(leaving - bad)
    with store.transaction(write=True) as txn:
        strays = _strays(txn)
        for table, row in strays.malformed:
            txn.remove_row(table, row)
        for digest in strays.unnamed:
            txn.erase(digest)
        for digest, count in strays.counts.items():
            txn.recount(digest, count)
    return removed


def _content(store: Store, record: Record, frames: dict[Digest, str], report: Report) -> str:
    """Why the value of `record` cannot be read, or nothing. Each frame is read once."""
    for segment in record.segments:
        if segment.digest is None:
            report.bytes += segment.length
        elif segment.digest not in frames:
            frames[segment.digest] = _frame(store, segment.digest, segment.length)
            report.bytes += segment.length
    return next((frames[digest] for digest in record.digests if frames[digest]), "")


def _frame(store: Store, digest: Digest, length: int) -> str:
    try:
        return "" if len(store.blob(digest)) == length else DAMAGE_UNREADABLE
    except Damaged as damaged:
        return damaged.reason


def _part_list(store: Store, item: Stored) -> str:
    try:
        store.parts(item.layer, item.key)
    except Damaged as damaged:
        return f"parts: {damaged.reason}"
    return ""


class _Strays(NamedTuple):
    """Frames that no row names, how often those are named that are counted otherwise, and rows that name no frame."""

    unnamed: list[Digest]
    counts: dict[Digest, int]
    malformed: list[tuple[str, bytes]]


def _strays(txn: Transaction) -> _Strays:
    named = Counter(_named(txn))
    kept, counted, malformed = set(), {}, []
    for row in txn.names("blobs"):
        if len(row) == CHUNK_ROW:
            kept.add(Digest(row[:SIZE]))
        else:
            malformed.append(("blobs", row))
    for row, data in txn.rows("refs", b""):
        if len(row) == SIZE:
            counted[Digest(row)] = int.from_bytes(data, "big")
        else:
            malformed.append(("refs", row))
    wrong = {digest: named[digest] for digest in {*named, *counted} if named[digest] != counted.get(digest, 0)}
    return _Strays([digest for digest in kept if digest not in named], wrong, malformed)


def _named(txn: Transaction) -> Iterator[Digest]:
    for row, data in txn.rows("index", b""):
        try:
            yield from unpack_record(*parse_row(row), data).digests
        except Damaged:
            continue  # reported as such; what it named is unknown
    for row, data in txn.rows("parts", b""):
        try:
            yield from {digest for _, digest, readable in unpack_parts(*parse_row(row), data) if readable}
        except Damaged:
            continue  # idem
