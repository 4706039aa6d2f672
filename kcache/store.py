"""One LMDB file that any number of processes of one machine share. The only module that opens LMDB.

Who may share it: processes of one machine and one PID namespace, on a local file system.
Readers never wait. Writers take turns, for milliseconds: compressing and hashing is done
before the write lock is taken. Two processes that store the same entry both succeed, and the
second changes nothing.

Process death: at any instant, loses at most the batch being written. A dead writer's lock is
robust and passes on; dead readers are cleared when a store is opened.

Power loss: LMDB's default is kept (data is synced before the page that makes it visible) but
for `metasync=False`, which leaves the sync of that page to the next commit. The last batch may
be lost; everything before it survives and the file stays sound. `sync=False` would be faster
and can lose the file, so it is not used.

Fork: `fork()` waits until no transaction is open in this process. The child lets go of its
copy of the environment, which then only unmaps memory and closes descriptors of the child's
own, and opens the store anew at its first access.

Size: the map is sparse and set once, so it never grows under live readers. A file that has
grown does not shrink, and freed pages are not always reused; therefore live pages are kept
below `FILL * max_size`. A transaction copies out what it needs and ends, since an old reader
keeps every page freed after it.

Damage: a file that LMDB cannot read is set aside and a new one made; content that is not what
was written is refused by its checksum. LMDB's own pages carry none: a bit that flips inside one
is noticed only where it makes no sense.

Nothing else in a process may open `data.mdb` or `lock.mdb` while a store is open: closing such
a descriptor drops LMDB's locks (POSIX). Checks use `stat`.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from . import place, recent
from .counters import Stats
from .digest import Digest, Key, Part
from .draft import Draft, Packed, pack
from .entry import (
    MAX_RAW,
    VERSION,
    Record,
    pack_frame,
    pack_parts,
    unpack_frame,
    unpack_parts,
    unpack_record,
)
from .errors import DAMAGE_MISSING_BLOB, DAMAGE_WRONG_KEY, Damaged, NewerStore, StoreError
from .evict import Row, plan
from .gate import Gate
from .rows import TABLES, VARIANT, Transaction, parse_row, prefix_of, variant_id
from .units import GIB, MIB

FILL = 0.6
"""Live bytes per byte of `max_size`. Churn was measured to make a file 1.75 times its live bytes."""
EVICT_TO = 0.8
"""Eviction goes on to this part of the limit, so that it is not begun again with every write."""
MAX_SHARE = 0.25
"""A value larger than this part of the limit is not stored: it would push out everything else."""
TOUCH_EVERY_NS = 3600 * 10**9
"""Access times are no finer than an hour: a hit must not cost a write."""
MAX_RUNS = 1000
_BATCH_ROWS = 256
_BATCH_GROUPS = 32
_DISK_OPEN = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)


# --- one environment per file and process ---------------------------------------------------


class _Environment:
    """An open LMDB environment, shared by the `Store` objects of this process that name its file."""

    def __init__(self, env: lmdb.Environment, home: Path, *, readonly: bool) -> None:
        self.env = env
        self.home = home
        self.readonly = readonly
        self.users = 0
        self.pid = os.getpid()
        self.tables = _open_tables(env, readonly=readonly)
        self.identity = _identity(home)


_registry: dict[tuple[int, int], _Environment] = {}
_leaked: list[_Environment] = []
"""Environments that must not be closed here, kept so that nothing closes them."""


def _in_child(inside: int) -> None:
    """Let go of the parent's environments. With no transaction open, closing touches nothing that is the parent's."""
    for environment in _registry.values():
        if inside:
            _leaked.append(environment)
        else:
            environment.env.close()
    _registry.clear()


_gate = Gate(_in_child)


def _identity(home: Path) -> tuple[int, int]:
    facts = os.stat(home / "data.mdb")
    return facts.st_dev, facts.st_ino


def _open_lmdb(home: Path, map_size: int, *, readonly: bool) -> lmdb.Environment:
    """The environment in `home`, with the largest map that the address space allows."""
    sizes = [map_size, *(size for size in (16 * GIB, 4 * GIB, GIB) if size < map_size)]
    for size in sizes:
        try:
            return lmdb.open(
                str(home),
                map_size=size,
                subdir=True,
                readonly=readonly,
                mode=0o600,
                create=not readonly,
                metasync=False,
                readahead=False,
                max_readers=512,
                max_dbs=len(TABLES) + 7,
                max_spare_txns=0,
            )
        except (lmdb.MemoryError, MemoryError):
            continue
    raise StoreError(f"{home}: no address space for a map of {sizes[-1]} bytes. Raise `ulimit -v`")


def _open_tables(env: lmdb.Environment, *, readonly: bool = False) -> dict[str, Any]:
    """Handles of all tables, made if missing."""
    if readonly:
        return {name: env.open_db(name.encode(), create=False) for name in TABLES}
    # A writing transaction: py-lmdb loses handles that were opened in one that only reads.
    with env.begin(write=True) as txn:
        return {name: env.open_db(name.encode(), txn=txn) for name in TABLES}


def _make_data(directory: Path) -> None:
    env = _open_lmdb(directory, 64 * MIB, readonly=False)
    try:
        tables = _open_tables(env)
        with env.begin(write=True) as txn:
            txn.put(b"format", str(VERSION).encode(), db=tables["meta"])
    finally:
        env.close()


def _check_length(env: lmdb.Environment, home: Path, *, readonly: bool) -> None:
    """Refuse a file that was cut short: touching what is missing would be SIGBUS. Comes before any table is read."""

    def missing() -> tuple[int, int]:
        needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        return needed - os.stat(home / "data.mdb").st_size, needed

    short, needed = missing()
    if short > MIB + needed // 100:
        raise lmdb.CorruptedError(f"data.mdb lacks {short} of {needed} bytes")
    if short > 0 and not readonly:
        # Pages at the end that were freed before they were ever written are missing rightfully. Under the
        # write lock, so that nobody else makes the file longer meanwhile; by path, so no descriptor is opened.
        with env.begin(write=True):
            short, needed = missing()
            if short > 0:
                os.truncate(home / "data.mdb", needed)


def _check_format(environment: _Environment) -> None:
    with environment.env.begin() as txn:
        found = int(txn.get(b"format", db=environment.tables["meta"]) or VERSION)
    if found > VERSION:
        raise NewerStore(f"{environment.home} has format {found}, newer than this kcache reads ({VERSION})")


# --- what is written and read ---------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """One row of the index as `scan` yields it; `record` is None if it is damaged."""

    id: bytes
    layer: str
    key: Key
    record: Record | None
    used_ns: int


def _sums(run: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Rows of the table of counters to which `run` adds, and how much."""
    for layer, counts in run.get("layers", {}).items():
        yield from ((f"{layer}\0{outcome}", n) for outcome, n in counts.items())
    yield from ((f"{layer}\0saved_ns", n) for layer, n in run.get("saved_ns", {}).items())


class Store:
    """An open store. Every method may be called from any thread and any process.

    Errors: `StoreError` where LMDB refuses; `Damaged` where bytes are not what was written.
    """

    def __init__(self, root: Path, max_size: int, readonly: bool, create: bool, stats: Stats) -> None:
        self.root = root
        self.max_size = max_size
        self.readonly = readonly
        self._create = create
        self._stats = stats
        self._environment: _Environment | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        max_size: int = 10 * GIB,
        readonly: bool = False,
        create: bool = True,
        stats: Stats | None = None,
    ) -> Store:
        """Open the store under `root`, creating it if needed.

        A file that LMDB cannot read is set aside under a dated name and a new one is made
        (counted as `damaged`, reason `unreadable-store`). Raises `NewerStore` or `StoreError`
        if the directory may not be used; nothing is changed then.
        """
        store = cls(Path(root), max_size, readonly, create and not readonly, stats or Stats())
        store._attach()
        return store

    @property
    def home(self) -> Path:
        """The directory of the format in use."""
        return self.root / place.NAME

    def close(self) -> None:
        """Let go of the store. The environment closes with its last user in this process."""
        self._closed = True
        environment, self._environment = self._environment, None
        if environment is None or environment.pid != os.getpid():
            return
        with _gate.lock:
            environment.users -= 1
            if environment.users == 0:
                _registry.pop(environment.identity, None)
                environment.env.close()

    # --- opening ---

    def _attach(self) -> _Environment:
        with _gate.lock:
            home = place.prepare(self.root, _make_data, create=self._create, readonly=self.readonly)
            try:
                environment = self._environment_of(home)
            except _DISK_OPEN as error:
                if self.readonly:
                    raise StoreError(f"{home} cannot be read: {error}") from error
                place.set_aside(home)
                self._stats.count("store", "damaged", reason="unreadable-store")
                home = place.prepare(self.root, _make_data, create=True, readonly=False)
                environment = self._environment_of(home)
            environment.users += 1
            self._environment = environment
            return environment

    def _environment_of(self, home: Path) -> _Environment:
        try:
            known = _registry.get(_identity(home))
        except FileNotFoundError:
            known = None
        if known is not None:
            if known.pid != os.getpid():
                raise StoreError(f"{home} is held by the parent of a process that was forked outside Python")
            if known.readonly and not self.readonly:
                raise StoreError(f"{home} is open read-only in this process. Close it before opening it to write")
            return known
        env = None
        try:
            env = _open_lmdb(home, max(64 * GIB, 4 * self.max_size), readonly=self.readonly)
            _check_length(env, home, readonly=self.readonly)
            environment = _Environment(env, home, readonly=self.readonly)
            _check_format(environment)
            if not self.readonly:
                env.reader_check()
        except _DISK_OPEN:
            if env is not None:
                env.close()
            raise
        except (lmdb.Error, OSError) as error:
            if env is not None:
                env.close()
            raise StoreError(f"{home} cannot be opened: {error}") from error
        except StoreError:
            if env is not None:
                env.close()
            raise
        _registry[environment.identity] = environment
        return environment

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Transaction]:
        """One transaction, in the environment of the process that asks."""
        if self._closed:
            raise StoreError(f"the store in {self.root} has been closed")
        if write and self.readonly:
            raise StoreError(f"the store in {self.root} was opened read-only")
        environment = self._environment
        if environment is None or environment.pid != os.getpid():
            environment = self._attach()
        try:
            with _gate.inside(), environment.env.begin(write=write) as txn:
                yield Transaction(txn, environment.tables)
        except lmdb.MapFullError:
            raise
        except _DISK_OPEN as error:
            self._condemn(environment)
            raise StoreError(f"{environment.home} is damaged and was set aside: {error}") from error
        except lmdb.Error as error:
            raise StoreError(f"{environment.home}: {error}") from error

    def _condemn(self, environment: _Environment) -> None:
        """Set a file aside whose tree is broken. The next access makes a new one."""
        with _gate.lock:
            if self.readonly or self._environment is not environment:
                return
            self._environment = None
            _registry.pop(environment.identity, None)
            _leaked.append(environment)  # other Store objects may still be reading it
            self._stats.count("store", "damaged", reason="unreadable-store")
            try:
                if _identity(environment.home) == environment.identity:
                    place.set_aside(environment.home)
            except FileNotFoundError:
                return  # another process was faster
            except OSError as error:
                raise StoreError(f"{environment.home} is damaged and cannot be set aside: {error}") from error

    # --- reading ---

    def variants(self, layer: str, key: Key) -> list[tuple[bytes, Record]]:
        """The variants of an entry, oldest first. Damaged ones are dropped, counted and left out."""
        prefix = prefix_of(layer, key)
        with self._transaction() as txn:
            rows = list(txn.rows("index", prefix))
        found = []
        for row, data in rows:
            try:
                found.append((row[len(prefix) :], self._record(row, layer, key, data)))
            except Damaged as damage:
                self._stats.count(layer, "damaged", reason=damage.reason)
                if not self.readonly:
                    self.drop(layer, key, row[len(prefix) :])
        found.sort(key=lambda item: item[1].created_ns)
        return found

    @staticmethod
    def _record(row: bytes, layer: str, key: Key, data: bytes) -> Record:
        record = unpack_record(layer, key, data)
        if variant_id(record.guards) != row[-VARIANT:]:
            raise Damaged(DAMAGE_WRONG_KEY, f"variant of {layer} {key!r}")
        return record

    def read(self, record: Record) -> bytes:
        """The value of `record`, verified, or `Damaged`."""
        frames: dict[Digest, bytes] = {}
        if record.digests:
            with self._transaction() as txn:
                frames = {digest: txn.frame(digest) for digest in record.digests}
        contents = {digest: self._unpack(digest, frame) for digest, frame in frames.items()}
        return b"".join(s.data if s.digest is None else contents[s.digest] for s in record.segments)

    def blob(self, digest: Digest) -> bytes:
        """The content kept under `digest`, verified, or `Damaged`."""
        with self._transaction() as txn:
            frame = txn.frame(digest)
        return self._unpack(digest, frame)

    @staticmethod
    def _unpack(digest: Digest, frame: bytes) -> bytes:
        if not frame:
            raise Damaged(DAMAGE_MISSING_BLOB, repr(digest))
        return unpack_frame(digest, frame)

    def parts(self, layer: str, key: Key) -> list[Part]:
        """The part list kept with an entry, with the values a person would read; empty if there is none."""
        with self._transaction() as txn:
            data = txn.get("parts", prefix_of(layer, key))
        if data is None:
            return []
        rows = unpack_parts(layer, key, data)
        return [Part(name, digest, self.blob(digest) if kept else b"") for name, digest, kept in rows]

    def like(self, layer: str, parts: Iterable[Part]) -> list[Key]:
        """A bounded number of entries that share a graph, a kernel's name or the layer alone, most alike first."""
        with self._transaction() as txn:
            return list(recent.like(txn, layer, [(part.name, part.digest) for part in parts]))

    def part_names(self, layer: str, key: Key) -> list[Part]:
        """Like `parts`, without the values."""
        with self._transaction() as txn:
            data = txn.get("parts", prefix_of(layer, key))
        return [Part(name, digest) for name, digest, _ in unpack_parts(layer, key, data)] if data else []

    def with_text(self, part: Part) -> Part:
        """`part` with its value if that is kept, or as it is. Raises `Damaged`."""
        with self._transaction() as txn:
            kept = txn.has_frame(part.digest)
        return Part(part.name, part.digest, self.blob(part.digest)) if kept else part

    def scan(self, layer: str = "") -> Iterator[Stored]:
        """Every row of the index (of one layer), in bounded transactions; rows written meanwhile may be missed."""
        prefix = layer.encode() + b"\0" if layer else b""
        after = b""
        while True:
            with self._transaction() as txn:
                batch = list(txn.rows("index", prefix, after=after, limit=_BATCH_ROWS))
                used = [txn.get("access", row) for row, _ in batch]
            for (row, data), stamp in zip(batch, used, strict=True):
                name, key = parse_row(row)
                try:
                    record: Record | None = self._record(row, name, key, data)
                except Damaged:
                    record = None  # reported as such; whoever reads the entry drops and counts it
                created = record.created_ns if record else 0
                yield Stored(row, name, key, record, int.from_bytes(stamp, "big") if stamp else created)
            if len(batch) < _BATCH_ROWS:
                return
            after = batch[-1][0]

    # --- writing ---

    def write(self, drafts: Sequence[Draft]) -> list[str]:
        """Store `drafts` in one transaction, in several if they are a large part of the limit.

        Returns for each "" if it was stored, else why not.

        Reasons: `present` (another writer was first), `too-large`, `no-room`, `map-full`.
        """
        limit = int(FILL * self.max_size)
        largest = min(MAX_SHARE * limit, MAX_RAW)
        reasons = ["too-large" if draft.size > largest else "" for draft in drafts]
        packed = {n: pack(draft) for n, draft in enumerate(drafts) if not reasons[n]}
        contents: dict[Digest, bytes] = {}
        for item in packed.values():
            contents |= item.contents | item.texts
        with self._transaction() as txn:
            fresh = [digest for digest in contents if not txn.has_frame(digest)]
        frames = {digest: pack_frame(digest, contents[digest]) for digest in fresh}
        incoming = sum(map(len, frames.values()))
        if incoming > EVICT_TO * limit / 2 and len(drafts) > 1:
            half = len(drafts) // 2
            return self.write(drafts[:half]) + self.write(drafts[half:])
        if self.live_bytes() + incoming > limit and not self.evict(max(0, int(EVICT_TO * limit) - incoming)):
            return [reason or "no-room" for reason in reasons]

        def frame_of(digest: Digest) -> bytes:
            # The second case: it was there a moment ago and has been evicted since.
            return frames.get(digest) or pack_frame(digest, contents[digest])

        for attempt in range(3):
            try:
                outcome = self._commit(packed, frame_of)
            except lmdb.MapFullError:
                self._make_room(attempt)
            else:
                return [outcome.get(n, reason) for n, reason in enumerate(reasons)]
        return [reason or "map-full" for reason in reasons]

    def _commit(self, packed: Mapping[int, Packed], frame_of: Callable[[Digest], bytes]) -> dict[int, str]:
        outcome: dict[int, str] = {}
        with self._transaction(write=True) as txn:
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

    def _make_room(self, attempt: int) -> None:
        """Evict from a full map, and commit once more: LMDB reuses pages only of the commit before the last."""
        try:
            if attempt == 0:
                self.evict(self.live_bytes() // 2)
            self.swap("meta", b"full", self.fetch("meta", b"full"), os.urandom(8))
        except lmdb.MapFullError:
            self._stats.count("store", "error", reason="map-full while evicting")

    def touch(self, rows: Iterable[bytes], now_ns: int | None = None) -> None:
        """Note that the index rows `rows` were used now. Costs no write if all were noted within the hour."""
        now = time.time_ns() if now_ns is None else now_ns
        wanted = set(rows)
        with self._transaction() as txn:
            noted = {row: int.from_bytes(txn.get("access", row) or b"", "big") for row in wanted}
        stale = [row for row, then in noted.items() if now - then > TOUCH_EVERY_NS]
        if not stale:
            return
        with self._transaction(write=True) as txn:
            for row in stale:
                if txn.get("index", row) is not None:
                    txn.put("access", row, now.to_bytes(8, "big"))

    def drop(self, layer: str, key: Key, variant: bytes, record: Record | None = None) -> None:
        """Remove one damaged variant, and those frames of `record` that do not verify, whoever else names them."""
        broken = [digest for digest in record.digests if not self._sound(digest)] if record else []
        with self._transaction(write=True) as txn:
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
        for start in range(0, len(listed), _BATCH_ROWS):
            with self._transaction(write=True) as txn:
                count += sum(txn.remove(row) for row in listed[start : start + _BATCH_ROWS])
        return count

    def evict(self, target: int) -> bool:
        """Remove least used entries, linked ones together, until at most `target` bytes are live."""
        rows = [
            Row(s.id, s.layer, s.key, s.used_ns, *((s.record.cost_ns, s.record.links) if s.record else ()))
            for s in self.scan()
        ]
        order = plan(rows)
        for start in range(0, len(order), _BATCH_GROUPS):
            with self._transaction(write=True) as txn:
                removed = 0
                for group in order[start : start + _BATCH_GROUPS]:
                    if txn.live_bytes() <= target:
                        break
                    removed += sum(txn.remove(row.id) for row in group)
            if not removed:
                break
            self._stats.count("store", "skipped", removed, reason="evicted")
        return self.live_bytes() <= target

    def clear(self) -> int:
        """Remove every entry. Returns how many there were. Counters and runs stay."""
        with self._transaction(write=True) as txn:
            count = txn.entries("index")
            for table in ("index", "blobs", "refs", "parts", "access", "recent"):
                txn.empty(table)
        return count

    # --- runs, counters, rows of other modules ---

    def add_run(self, run: Mapping[str, Any], now_ns: int | None = None) -> None:
        """Append what one process did, and add its layers' counts to the lifetime sums."""
        now = time.time_ns() if now_ns is None else now_ns
        data = json.dumps(dict(run), sort_keys=True).encode()
        with self._transaction(write=True) as txn:
            txn.put("runs", struct.pack(">QI", now, os.getpid() & 0xFFFFFFFF), data)
            excess = txn.entries("runs") - MAX_RUNS
            if excess > 0:
                for row, _ in list(txn.rows("runs", b"", limit=excess)):
                    txn.remove_row("runs", row)
            for name, n in _sums(run):
                old = int(txn.get("counters", name.encode()) or 0)
                txn.put("counters", name.encode(), str(old + n).encode())

    def runs(self, limit: int = MAX_RUNS) -> list[dict[str, Any]]:
        """The last runs, newest first. A row that is not JSON is left out and counted."""
        with self._transaction() as txn:
            rows = [data for _, data in txn.rows("runs", b"")]
        found: list[dict[str, Any]] = []
        for data in reversed(rows[-limit:]):
            try:
                found.append(json.loads(data))
            except ValueError:
                self._stats.count("store", "damaged", reason="unreadable-run")
        return found

    def counters(self) -> dict[str, dict[str, int]]:
        """Lifetime sums: layer to outcome (and `saved_ns`) to count."""
        with self._transaction() as txn:
            rows = list(txn.rows("counters", b""))
        sums: dict[str, dict[str, int]] = {}
        for row, data in rows:
            layer, _, outcome = row.decode().partition("\0")
            sums.setdefault(layer, {})[outcome] = int(data)
        return sums

    def fetch(self, table: str, row: bytes) -> bytes | None:
        """One row of `table`, for the modules that keep rows of their own here (leases)."""
        with self._transaction() as txn:
            return txn.get(table, row)

    def swap(self, table: str, row: bytes, old: bytes | None, new: bytes | None) -> bool:
        """Compare and set: if the row is `old` (None: absent) make it `new` (None: delete). Atomic among processes."""
        with self._transaction(write=True) as txn:
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
        with self._transaction() as txn:
            return txn.live_bytes()

    def size_on_disk(self) -> int:
        """Bytes that the file takes on disk."""
        facts = os.stat(self.home / "data.mdb")
        return getattr(facts, "st_blocks", facts.st_size // 512) * 512

    def count(self) -> int:
        """Rows in the index."""
        with self._transaction() as txn:
            return txn.entries("index")

    def sync(self) -> None:
        """Return when everything committed so far is on the disk, the last batch too."""
        environment = self._environment
        if environment is not None and environment.pid == os.getpid() and not self.readonly:
            environment.env.sync(True)
