"""One LMDB file that any number of processes of one machine share.

Who may share it: processes of one user, one machine and one PID namespace, on a local file
system. Readers never wait. Writers take turns, for milliseconds: compressing and hashing is
done before; one that has not had its turn after a second skips its write, with the reason
`busy`. Two processes that store the same entry both succeed, and the second changes nothing.
Each method may be called from any thread; past LMDB's 1022 readers at once a read is an error
with the reason `readers-full`, which callers take for a bypass.

Process death: at any instant, loses at most the batch being written. A dead writer's locks are
freed by the kernel. Whoever opens a store in which a process died inside a transaction checks
the whole tree first (`datafile`), so a file that has killed one process does not kill the next.

Power loss: LMDB's default is kept (data is synced before the page that makes it visible) but
for `metasync=False`, which leaves the sync of that page to the next commit. The last commit may
be lost; everything before it survives and the file stays sound. It costs one `fdatasync` a
batch, in the background. `sync=False` would be faster and can lose the file, so it is not used.

Fork: `fork()` waits until no transaction is open in this process, at most `gate.FORK_WAIT`
seconds. The child lets go of its copy of the environment, which then only unmaps memory and closes
descriptors of the child's own, and opens the store anew at its first access. A child forked from
inside a transaction, which nothing in kcache does, has no store: reason `fork`.

Opening: a store is looked at and opened while nobody sets it aside (`place.kept`), so what is opened
by its path is of one store. It takes its turn to write for a moment; where that does not come,
`Cache.open` opens the store to read, as it does where it cannot be written.

Size: the map is as large as `max_size`, so the file cannot outgrow it. Freed pages are reused
but a file does not shrink by itself (`kcache compact`), and freed room is in pieces; therefore
live pages are kept below `FILL * max_size`. A transaction copies out what it needs and ends,
since an old reader keeps every page freed after it.

Damage: a file that LMDB cannot read is set aside and a new one made; content that is not what
was written is refused by its checksum. LMDB's own pages carry none: a bit that flips inside one
is noticed only where it makes no sense. A file cut short is noticed when it is opened; one cut
short *while* a process has it open ends that process at its next access (SIGBUS), which no
reader of a mapped file can prevent. Nothing of kcache's shortens a file in use.

Refusals of the system: a write that finds no room, or is past a limit, is skipped under its reason,
and what was stored stays. Where LMDB then gives its environment up, it is opened anew.

`tests/processes` and `tests/faults` show all of this; `make faults` at full numbers.

Strangers: with a signing key, every record that is written carries a tag of it, and one without is
dropped like damage, before it is parsed (`entry`; SECURITY.md says what that promises).

Cost: `bench/store.py` measures it. A small read is one transaction that takes no lock of LMDB's.

Nothing else in a process may open `data.mdb`, `lock.mdb` or `holders` while a store is open:
closing such a descriptor drops the locks (POSIX). Checks use `stat`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import database, datafile, history, place, recent, room
from .counters import Stats
from .database import Database
from .datafile import MapFull, Unreadable
from .digest import Digest, Key, Part
from .draft import Draft, Packed, pack
from .entry import MAX_RAW, Record, pack_frame, pack_parts, unpack_frame, unpack_parts, unpack_record
from .errors import DAMAGE_MISSING_BLOB, DAMAGE_WRONG_KEY, Damaged, StoreError
from .rows import NO_GUARDS, VARIANT, Transaction, index_row, parse_row, prefix_of, variant_id
from .units import GIB

TOUCH_EVERY_NS = 3600 * 10**9
"""Access times are no finer than an hour: a hit must not cost a write."""
BATCH_ROWS = 256
AGAIN_AFTER = 30.0
"""Seconds after which a forked child that could not open the store tries again: each try may wait for its turn."""
_ATTEMPTS = 3
"""How often opening is tried again after a damaged file was set aside, by this process or another."""


@dataclass(frozen=True)
class Stored:
    """One row of the index as `scan` yields it; `record` is None if it is damaged, and `damage` says how."""

    id: bytes
    layer: str
    key: Key
    record: Record | None
    used_ns: int
    damage: str = ""


class Store:
    """An open store. Every method may be called from any thread and any process.

    Errors: `StoreError` where LMDB refuses; `Damaged` where bytes are not what was written.
    """

    def __init__(
        self, root: Path, max_size: int, readonly: bool, create: bool, stats: Stats, signing_key: bytes | None
    ) -> None:
        self.root = root
        self.max_size = max_size
        self.readonly = readonly
        self._create = create
        self._stats = stats
        self._signing_key = signing_key
        self._database: Database | None = None
        self._closed = False
        self._refused: tuple[float, StoreError] | None = None

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        max_size: int = 10 * GIB,
        readonly: bool = False,
        create: bool = True,
        stats: Stats | None = None,
        signing_key: bytes | None = None,
    ) -> Store:
        """Open the store under `root`, creating it if needed.

        With a `signing_key` of 32 bytes, what is written is tagged with it, and an entry without its tag is dropped
        and counted (as `refused`) like a damaged one.

        A file that LMDB cannot read is set aside under a dated name and a new one is made
        (counted as `damaged`, reason `unreadable-store`). Raises `NewerStore` or `StoreError`
        if the directory may not be used; nothing is changed then.
        """
        store = cls(Path(root), max_size, readonly, create and not readonly, stats or Stats(), signing_key)
        store._attach()
        return store

    @property
    def home(self) -> Path:
        """The directory of the format in use."""
        return self.root / place.NAME

    def close(self) -> None:
        """Let go of the store. The environment closes with its last user in this process."""
        self._closed = True
        held, self._database = self._database, None
        if held is not None:
            database.release(held)

    # --- opening ---

    def _attach(self) -> Database:
        with database.gate.lock:
            if self._refused and time.monotonic() < self._refused[0]:
                raise StoreError(str(self._refused[1]), reason=self._refused[1].reason)
            try:
                self._database, self._refused = self._opened(), None
            except StoreError as error:
                self._refused = time.monotonic() + AGAIN_AFTER, error
                raise
            return self._database

    def _opened(self) -> Database:
        for last in (*[False] * _ATTEMPTS, True):
            with place.kept(self.root):
                home = place.prepare(self.root, datafile.make, create=self._create, readonly=self.readonly)
                file = place.identity(home)
                try:
                    return database.acquire(home, self.max_size, readonly=self.readonly)
                except Unreadable:
                    if last or self.readonly:
                        raise
            self._set_aside(home, file)
            self._create = True
        raise AssertionError("unreachable")

    def _set_aside(self, home: Path, file: tuple[int, int] | None) -> None:
        try:
            if place.set_aside(home, file):
                self._stats.count("store", "damaged", reason="unreadable-store")
        except OSError as error:
            raise StoreError(f"{home} is damaged and cannot be set aside: {error}") from error

    def transaction(self, *, write: bool = False) -> AbstractContextManager[Transaction]:
        """One transaction, in the environment of the process that asks. Short: it holds off `fork()` and old pages."""
        return self._held(write).transaction(write=write, broken=self._condemn)

    def _held(self, write: bool) -> Database:
        if self._closed:
            raise StoreError(f"the store in {self.root} has been closed")
        if write and self.readonly:
            raise StoreError(f"the store in {self.root} was opened read-only", reason="read-only")
        held = self._database
        if held is None or held.pid != os.getpid():
            return self._attach()
        if write and held.replaced():
            database.forget(held)
            return self._attach()
        return held

    def _condemn(self, held: Database) -> None:
        """Set a file aside whose tree is broken, before the error is raised. The next access makes a new one."""
        with database.gate.lock:
            if self.readonly or self._database is not held:
                return
            self._database = None
            database.forget(held)
            self._set_aside(held.home, held.identity)

    # --- reading ---

    def variants(self, layer: str, key: Key) -> list[tuple[bytes, Record]]:
        """The variants of an entry, oldest first. Damaged ones are dropped, counted and left out."""
        prefix = prefix_of(layer, key)
        with self.transaction() as txn:
            rows = list(txn.rows("index", prefix))
        found = []
        for row, data in rows:
            try:
                found.append((row[len(prefix) :], self._record(row, layer, key, data)))
            except Damaged as damage:
                self._stats.count(layer, damage.outcome, reason=damage.reason)
                if not self.readonly:
                    self.drop(layer, key, row[len(prefix) :])
        found.sort(key=lambda item: item[1].created_ns)
        return found

    def _record(self, row: bytes, layer: str, key: Key, data: bytes) -> Record:
        record = unpack_record(layer, key, data, self._signing_key)
        if variant_id(record.guards) != row[-VARIANT:]:
            raise Damaged(DAMAGE_WRONG_KEY, f"variant of {layer} {key!r}")
        return record

    def read(self, record: Record) -> bytes:
        """The value of `record`, verified, or `Damaged`."""
        with self.transaction() as txn:
            frames = [txn.frame(s.digest) if s.digest else b"" for s in record.segments]
        return self._joined(record, frames)

    def plain(self, layer: str, key: Key) -> tuple[bytes, Record, bytes] | None:
        """Row, record and value, verified, of the variant without guards; None if there is none or it is damaged.

        The way of most lookups, in one transaction. `variants` and `read` know what to do with everything else.
        """
        row = index_row(layer, key, NO_GUARDS)
        with self.transaction() as txn:
            data = txn.get("index", row)
            if data is None:
                return None
            try:
                record = self._record(row, layer, key, data)
            except Damaged:
                return None
            frames = [txn.frame(s.digest) if s.digest else b"" for s in record.segments]
        try:
            return row, record, self._joined(record, frames)
        except Damaged:
            return None

    def _joined(self, record: Record, frames: Sequence[bytes]) -> bytes:
        if len(frames) == 1 and (only := record.segments[0]).digest:
            return self._unpack(only.digest, frames[0], only.length)
        pieces = [
            self._unpack(segment.digest, frame, segment.length) if segment.digest else segment.data
            for segment, frame in zip(record.segments, frames, strict=True)
        ]
        return b"".join(pieces)

    def blob(self, digest: Digest) -> bytes:
        """The content kept under `digest`, verified, or `Damaged`."""
        with self.transaction() as txn:
            frame = txn.frame(digest)
        return self._unpack(digest, frame)

    def _unpack(self, digest: Digest, frame: bytes, length: int | None = None) -> bytes:
        if not frame:
            raise Damaged(DAMAGE_MISSING_BLOB, repr(digest))
        return unpack_frame(digest, frame, length, signed=self._signing_key is not None)

    def parts(self, layer: str, key: Key) -> list[Part]:
        """The part list kept with an entry, with the values a person would read; empty if there is none."""
        with self.transaction() as txn:
            data = txn.get("parts", prefix_of(layer, key))
        if data is None:
            return []
        rows = unpack_parts(layer, key, data)
        return [Part(name, digest, self.blob(digest) if kept else b"") for name, digest, kept in rows]

    def like(self, layer: str, parts: Iterable[Part]) -> list[Key]:
        """A bounded number of entries that share a graph, a kernel's name or the layer alone, most alike first."""
        with self.transaction() as txn:
            return list(recent.like(txn, layer, [(part.name, part.digest) for part in parts]))

    def part_names(self, layer: str, key: Key) -> list[Part]:
        """Like `parts`, without the values."""
        with self.transaction() as txn:
            data = txn.get("parts", prefix_of(layer, key))
        return [Part(name, digest) for name, digest, _ in unpack_parts(layer, key, data)] if data else []

    def with_text(self, part: Part) -> Part:
        """`part` with its value if that is kept, or as it is. Raises `Damaged`."""
        with self.transaction() as txn:
            kept = txn.has_frame(part.digest)
        return Part(part.name, part.digest, self.blob(part.digest)) if kept else part

    def scan(self, layer: str = "") -> Iterator[Stored]:
        """Every row of the index (of one layer), in bounded transactions; rows written meanwhile may be missed."""
        prefix = layer.encode() + b"\0" if layer else b""
        after = b""
        while True:
            with self.transaction() as txn:
                batch = list(txn.rows("index", prefix, after=after, limit=BATCH_ROWS))
                used = [txn.get("access", row) for row, _ in batch]
            for (row, data), stamp in zip(batch, used, strict=True):
                name, key = parse_row(row)
                record, damage = None, ""
                try:
                    record = self._record(row, name, key, data)
                except Damaged as damaged:
                    damage = damaged.reason  # reported as such; whoever reads the entry drops and counts it
                created = record.created_ns if record else 0
                yield Stored(row, name, key, record, int.from_bytes(stamp, "big") if stamp else created, damage)
            if len(batch) < BATCH_ROWS:
                return
            after = batch[-1][0]

    # --- writing ---

    def write(self, drafts: Sequence[Draft]) -> list[str]:
        """Store `drafts` in one transaction, in several if they are a large part of the limit.

        Returns for each "" if it was stored, else why not.

        Reasons: `present` (another writer was first), `too-large`, `no-room`, `map-full`.
        """
        largest = room.largest(self.max_size)
        reasons = ["too-large" if draft.size > min(largest, MAX_RAW) else "" for draft in drafts]
        packed = {n: pack(draft, self._signing_key) for n, draft in enumerate(drafts) if not reasons[n]}
        contents: dict[Digest, bytes] = {}
        for item in packed.values():
            contents |= item.contents | item.texts
        with self.transaction() as txn:
            fresh = [digest for digest in contents if not txn.has_frame(digest)]
        frames = {digest: pack_frame(digest, contents[digest]) for digest in fresh}
        incoming = sum(map(len, frames.values()))
        if len(drafts) > 1 and incoming > room.batch(self.max_size):
            half = len(drafts) // 2
            return self.write(drafts[:half]) + self.write(drafts[half:])
        if not room.make(self, incoming):
            return [reason or "no-room" for reason in reasons]

        def frame_of(digest: Digest) -> bytes:
            # The second case: it was there a moment ago and has been evicted since.
            return frames.get(digest) or pack_frame(digest, contents[digest])

        for attempt in range(3):
            try:
                outcome = self._commit(packed, frame_of)
            except MapFull:
                self._free(attempt)
            else:
                return [outcome.get(n, reason) for n, reason in enumerate(reasons)]
        return [reason or "map-full" for reason in reasons]

    def _commit(self, packed: Mapping[int, Packed], frame_of: Callable[[Digest], bytes]) -> dict[int, str]:
        outcome: dict[int, str] = {}
        with self.transaction(write=True) as txn:
            for number, item in packed.items():
                draft = item.draft
                prefix = prefix_of(draft.layer, draft.key)
                if not txn.put_new("index", prefix + variant_id(draft.guards), item.record):
                    outcome[number] = "present"
                    continue
                for digest in item.contents:
                    txn.keep(digest, frame_of)
                if draft.parts and txn.put_new("parts", prefix, pack_parts(draft.layer, draft.key, draft.parts)):
                    recent.note(txn, draft.layer, draft.key, [(part.name, part.digest) for part in draft.parts])
                    for digest in item.texts:
                        txn.keep(digest, frame_of)
        return outcome

    def _free(self, attempt: int) -> None:
        """Evict from a full map, and commit once more: LMDB reuses pages only of the commit before the last."""
        try:
            if attempt == 0:
                self.evict(self.live_bytes() // 2)
            self.swap("meta", b"full", self.fetch("meta", b"full"), os.urandom(8))
        except MapFull:
            self._stats.count("store", "error", reason="map-full while evicting")

    def touch(self, rows: Iterable[bytes], now_ns: int | None = None) -> None:
        """Note that the index rows `rows` were used now. Costs no write if all were noted within the hour."""
        now = time.time_ns() if now_ns is None else now_ns
        wanted = set(rows)
        with self.transaction() as txn:
            noted = {row: int.from_bytes(txn.get("access", row) or b"", "big") for row in wanted}
        # A time to come is damage or a clock that was set back, and would keep the entry for good.
        stale = [row for row, then in noted.items() if not 0 <= now - then <= TOUCH_EVERY_NS]
        if not stale:
            return
        with self.transaction(write=True) as txn:
            for row in stale:
                if txn.get("index", row) is not None:
                    txn.put("access", row, now.to_bytes(8, "big"))

    def drop(self, layer: str, key: Key, variant: bytes, record: Record | None = None) -> None:
        """Remove one damaged variant, and those frames of `record` that do not verify, whoever else names them."""
        broken = [digest for digest in record.digests if not self._sound(digest)] if record else []
        with self.transaction(write=True) as txn:
            txn.remove(prefix_of(layer, key) + variant)
            for digest in broken:
                txn.erase(digest)

    def _sound(self, digest: Digest) -> bool:
        try:
            self.blob(digest)
        except Damaged:
            return False
        return True

    def delete(self, rows: Iterable[bytes]) -> int:
        """Remove the index rows `rows`, in small transactions. Returns how many there were."""
        listed, count = list(rows), 0
        for start in range(0, len(listed), BATCH_ROWS):
            with self.transaction(write=True) as txn:
                count += sum(txn.remove(row) for row in listed[start : start + BATCH_ROWS])
        return count

    def evict(self, target: int) -> bool:
        """Remove least used entries, linked ones together, until at most `target` bytes are live."""
        removed = room.evict(self, target)
        if removed:
            self._stats.count("store", "skipped", removed, reason="evicted")
        return self.live_bytes() <= target

    def clear(self) -> int:
        """Remove every entry. Returns how many there were. Counters and runs stay."""
        with self.transaction(write=True) as txn:
            count = txn.entries("index")
            for table in ("index", "blobs", "refs", "parts", "access", "recent"):
                txn.empty(table)
        return count

    # --- runs, counters, rows of other modules ---

    def add_run(self, run: Mapping[str, Any], now_ns: int | None = None) -> None:
        """Append what one process did, and add its layers' counts and reasons to the lifetime sums."""
        with self.transaction(write=True) as txn:
            history.add(txn, run, time.time_ns() if now_ns is None else now_ns)

    def runs(self, limit: int = history.MAX_RUNS) -> list[dict[str, Any]]:
        """The last runs, newest first. A row that is not JSON is left out and counted."""
        with self.transaction() as txn:
            found, damaged = history.runs(txn, limit)
        if damaged:
            self._stats.count("store", "damaged", damaged, reason="unreadable-run")
        return found

    def counters(self) -> dict[str, dict[str, int]]:
        """Lifetime sums: layer to outcome (and `saved_ns`) to count."""
        with self.transaction() as txn:
            return history.counters(txn)

    def reasons(self) -> dict[tuple[str, str, str], int]:
        """Lifetime sums of reasons: (layer, outcome, reason) to count."""
        with self.transaction() as txn:
            return history.reasons(txn)

    def fetch(self, table: str, row: bytes) -> bytes | None:
        """One row of `table`, for the modules that keep rows of their own here (leases)."""
        with self.transaction() as txn:
            return txn.get(table, row)

    def swap(self, table: str, row: bytes, old: bytes | None, new: bytes | None) -> bool:
        """Compare and set: if the row is `old` (None: absent) make it `new` (None: delete). Atomic among processes."""
        with self.transaction(write=True) as txn:
            if txn.get(table, row) != old:
                return False
            if new is None:
                txn.remove_row(table, row)
            else:
                txn.put(table, row, new)
            return True

    # --- size ---

    def live_bytes(self) -> int:
        """Bytes of the pages in use, in all tables. Free pages in the file do not count."""
        with self.transaction() as txn:
            return txn.live_bytes()

    def size_on_disk(self) -> int:
        """Bytes that the file takes on disk."""
        facts = os.stat(self.home / "data.mdb")
        return getattr(facts, "st_blocks", facts.st_size // 512) * 512

    def count(self) -> int:
        """Rows in the index."""
        with self.transaction() as txn:
            return txn.entries("index")

    def sync(self) -> None:
        """Return when everything committed so far is on the disk, the last batch too."""
        held = self._database
        if held is not None and held.pid == os.getpid() and not self.readonly:
            held.env.sync(True)
