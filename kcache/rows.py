"""The tables of the store and how their rows are named; one transaction in these terms.

::

    index      entry variant         record           ; entry = layer 0x00 key
    blobs      digest u32be          chunk            ; chunks of a frame, numbered
    refs       digest                u32be            ; rows of `index` and `parts` that name the frame
    parts      entry                 part list
    access     entry variant         u64be            ; last use, nanoseconds since the epoch
    runs       u64be u32be           JSON             ; time and pid of a process that ended
    counters   layer 0x00 outcome    decimal          ; sums over all runs
    leases     entry                 (lease)
    recent     digest                key*             ; `kcache.recent`
    meta       "format"              decimal

    variant    = 16 bytes            ; of the digest of the guards

Records, frames and part lists are those of `entry`. A reference is added and taken in the same
transaction as the row that holds it, so a frame is there exactly as long as something names it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import recent
from .digest import SIZE, Digest, Key
from .entry import unpack_parts, unpack_record
from .errors import Damaged
from .units import MIB

TABLES = ("index", "blobs", "refs", "parts", "runs", "counters", "leases", "access", "recent", "meta")
LATER = ("recent",)
"""Tables that stores of this format may lack: an index that is found empty then."""
VARIANT = 16
_COUNT = 4
_MAX_COUNT = 2**32 - 1
CHUNK = MIB
"""Larger rows need that many contiguous free pages, which a used file rarely has."""


@functools.lru_cache(1024)
def variant_id(guards: str) -> bytes:
    """16 bytes that tell the variants of one key apart."""
    return Digest.of(guards.encode()).raw[:VARIANT]


NO_GUARDS = variant_id("")


def prefix_of(layer: str, key: Key) -> bytes:
    return layer.encode() + b"\0" + key.raw


def index_row(layer: str, key: Key, variant: bytes) -> bytes:
    """Name of a variant's row in the index: what `touch` and `delete` take."""
    return prefix_of(layer, key) + variant


def parse_row(row: bytes) -> tuple[str, Key]:
    """Layer and key of a row's name. Of a damaged name they are some that the row's content does not belong to."""
    layer, _, rest = row.partition(b"\0")
    return layer.decode(errors="replace"), Key(rest[:SIZE].ljust(SIZE, b"\0"))


def _chunk_row(digest: Digest, number: int) -> bytes:
    return digest.raw + struct.pack(">I", number)


_FIRST = bytes(4)
CHUNK_ROW = SIZE + len(_FIRST)
"""Bytes in the name of a row of `blobs`."""


class Transaction:
    """LMDB's transaction in this store's words: named tables, chunked frames, counted references."""

    __slots__ = ("_tables", "_txn")

    def __init__(self, txn: Any, tables: Mapping[str, Any]) -> None:
        self._txn = txn
        self._tables = tables

    def get(self, table: str, row: bytes) -> bytes | None:
        if table in LATER and table not in self._tables:
            return None
        data: bytes | None = self._txn.get(row, None, self._tables[table])
        return data

    def put(self, table: str, row: bytes, data: bytes) -> None:
        self._txn.put(row, data, db=self._tables[table])

    def put_new(self, table: str, row: bytes, data: bytes) -> bool:
        return bool(self._txn.put(row, data, db=self._tables[table], overwrite=False))

    def remove_row(self, table: str, row: bytes) -> bool:
        return bool(self._txn.delete(row, db=self._tables[table]))

    def rows(self, table: str, prefix: bytes, *, after: bytes = b"", limit: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """Rows that begin with `prefix`, in order, from the one behind `after`, at most `limit`."""
        seen = 0
        with self._txn.cursor(db=self._tables[table]) as cursor:
            found = cursor.set_range(after or prefix)
            if found and after and cursor.key() == after:
                found = cursor.next()
            while found and (not limit or seen < limit):
                row, data = cursor.item()
                if not row.startswith(prefix):
                    return
                yield row, data
                seen += 1
                found = cursor.next()

    def names(self, table: str) -> Iterator[bytes]:
        """Names of all rows, in order."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            yield from cursor.iternext(keys=True, values=False)

    def entries(self, table: str) -> int:
        return int(self._txn.stat(self._tables[table])["entries"])

    def empty(self, table: str) -> None:
        self._txn.drop(self._tables[table], delete=False)

    def live_bytes(self) -> int:
        pages, size = 0, 4096
        for table in self._tables.values():
            facts = self._txn.stat(table)
            pages += facts["branch_pages"] + facts["leaf_pages"] + facts["overflow_pages"]
            size = facts["psize"]
        return int(pages * size)

    def has_frame(self, digest: Digest) -> bool:
        return self._txn.get(digest.raw + _FIRST, db=self._tables["blobs"]) is not None

    def frame(self, digest: Digest) -> bytes:
        """All chunks of a frame, or nothing if it is not there."""
        first: bytes = self._txn.get(digest.raw + _FIRST, b"", self._tables["blobs"])
        if len(first) < CHUNK:
            return first
        return b"".join([chunk for _, chunk in self.rows("blobs", digest.raw)])

    def keep(self, digest: Digest, frame_of: Callable[[Digest], bytes]) -> None:
        """Add one reference to a frame, writing it if it is not there."""
        self.put("refs", digest.raw, (self._references(digest) + 1).to_bytes(_COUNT, "big"))
        if not self.has_frame(digest):
            frame = frame_of(digest)
            for number, start in enumerate(range(0, len(frame), CHUNK)):
                self.put("blobs", _chunk_row(digest, number), frame[start : start + CHUNK])

    def release(self, digest: Digest) -> None:
        """Take one reference away; a frame goes with its last."""
        count = self._references(digest)
        if count > 1:
            self.put("refs", digest.raw, (count - 1).to_bytes(_COUNT, "big"))
        else:
            self.remove_row("refs", digest.raw)
            self.erase(digest)

    def _references(self, digest: Digest) -> int:
        """How many are counted. A damaged count is none: the frame may then leave early, and is a miss."""
        data = self.get("refs", digest.raw) or b""
        return int.from_bytes(data, "big") % _MAX_COUNT if len(data) == _COUNT else 0

    def recount(self, digest: Digest, count: int) -> None:
        """Set how many rows name a frame."""
        if count:
            self.put("refs", digest.raw, count.to_bytes(_COUNT, "big"))
        else:
            self.remove_row("refs", digest.raw)

    def erase(self, digest: Digest) -> None:
        """Remove a frame's bytes. References stay counted; readers see `missing-blob`."""
        for row, _ in list(self.rows("blobs", digest.raw)):
            self.remove_row("blobs", row)

    def remove(self, row: bytes) -> bool:
        """Remove an index row with all that only it needs."""
        data = self.get("index", row)
        if data is None:
            return False
        layer, key = parse_row(row)
        self.remove_row("index", row)
        self.remove_row("access", row)
        try:
            digests: tuple[Digest, ...] = unpack_record(layer, key, data).digests
        except Damaged:
            digests = ()  # what it named is unknown: those frames stay until `clear`
        for digest in digests:
            self.release(digest)
        prefix = row[:-VARIANT]
        if prefix and next(self.rows("index", prefix, limit=1), None) is None:
            self._remove_parts(prefix, layer, key)
        return True

    def _remove_parts(self, prefix: bytes, layer: str, key: Key) -> None:
        data = self.get("parts", prefix)
        if data is None:
            return
        self.remove_row("parts", prefix)
        try:
            parts = unpack_parts(layer, key, data)
        except Damaged:
            parts = []  # as above
        recent.forget(self, layer, key, [(name, digest) for name, digest, _ in parts])
        kept = {digest for _, digest, readable in parts if readable}
        for digest in kept:
            self.release(digest)
