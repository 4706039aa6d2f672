"""Entries whose bytes were changed in place, in a tree that is sound: every such entry is right or a counted miss.

One row of one table is changed in one way (`MUTATIONS`) behind kcache's back. Then all entries that might be touched by
it are asked for through a fresh `Cache`, as a program would: each must be a verified hit or a miss with its reason; what
was missed is compiled anew and put, and must then be a hit for the next process. Faults: a wrong value, a miss that no
reason explains, an exception, an entry that does not come back.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.errors import NewerStore
from kcache.rows import TABLES
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries
from tests.faults.figures import Figures

COUNT = 24
MAX_SIZE = 64 * MIB

Mutation = Callable[[bytes, random.Random], bytes]


def flipped_bit(data: bytes, drawn: random.Random) -> bytes:
    return _with(data, drawn.randrange(len(data)), lambda byte: byte ^ 1 << drawn.randrange(8)) if data else b"\1"


def changed_byte(data: bytes, drawn: random.Random) -> bytes:
    return _with(data, drawn.randrange(len(data)), lambda byte: byte + drawn.randrange(1, 256)) if data else b"\1"


def changed_head(data: bytes, drawn: random.Random) -> bytes:
    """One byte of the first 64, where lengths and kinds are."""
    return _with(data, drawn.randrange(min(64, len(data))), lambda byte: drawn.randrange(256)) if data else b"\1"


def cut_off(data: bytes, drawn: random.Random) -> bytes:
    return data[: drawn.randrange(len(data))] if data else b""


def cut_off_front(data: bytes, drawn: random.Random) -> bytes:
    return data[drawn.randrange(len(data)) + 1 :] if data else b""


def longer(data: bytes, drawn: random.Random) -> bytes:
    return data + drawn.randbytes(drawn.randrange(1, 40))


def zeroed(data: bytes, drawn: random.Random) -> bytes:
    return bytes(len(data))


def zeroed_tail(data: bytes, drawn: random.Random) -> bytes:
    kept = drawn.randrange(len(data)) if data else 0
    return data[:kept].ljust(len(data), b"\0")


def noise(data: bytes, drawn: random.Random) -> bytes:
    return drawn.randbytes(len(data))


def halves_swapped(data: bytes, drawn: random.Random) -> bytes:
    return data[len(data) // 2 :] + data[: len(data) // 2]


MUTATIONS: tuple[Mutation, ...] = (
    *(flipped_bit, changed_byte, changed_head, cut_off, cut_off_front, longer, zeroed, zeroed_tail, noise),
    halves_swapped,
)


def _with(data: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return data[:at] + bytes([change(data[at]) % 256]) + data[at + 1 :]


class Bench:
    """One store under mutation. `rows` is what every table held when it was whole."""

    def __init__(self, root: Path, seed: int, figures: Figures) -> None:
        self.root = root
        self.drawn = random.Random(seed)
        self.figures = figures
        with self.cache() as cache:
            for n in range(COUNT):
                put(cache, n)
            cache.flush()
            cache.store.touch([item.id for item in cache.store.scan()])
            cache.store.add_run({"layers": {"fx": {"hit": 3}}, "reasons": [], "saved_ns": {"fx": 5}})
            with cache.store.transaction() as txn:
                self.rows = {table: dict(txn.rows(table, b"")) for table in TABLES}
        self.whole = root.with_name("whole")
        shutil.copytree(root, self.whole)

    @contextmanager
    def cache(self) -> Iterator[Cache]:
        """A cache such as the next process has; strict is off, as it is for users."""
        stats = Stats()
        settings = Settings(dir=self.root, max_size=MAX_SIZE)
        cache = Cache(Store.open(self.root, max_size=MAX_SIZE, stats=stats), settings, stats, keep_runs=False)
        try:
            yield cache
        finally:
            cache.close()

    def mutate(self) -> str:
        """Change one row of the store. Returns what was done."""
        tables = [name for name in TABLES if self.rows[name]]
        table = self.drawn.choices(tables, [10 if name in ("index", "blobs", "parts") else 1 for name in tables])[0]
        row, data = self.drawn.choice(list(self.rows[table].items()))
        how = self.drawn.randrange(len(MUTATIONS) + 3)
        with self.cache() as cache, cache.store.transaction(write=True) as txn:
            if how < len(MUTATIONS):
                change = MUTATIONS[how]
                txn.put(table, row, change(data, self.drawn))
                return f"{table}: {change.__name__}"
            if how == len(MUTATIONS):
                txn.remove_row(table, row)
                return f"{table}: removed"
            other, theirs = self.drawn.choice(list(self.rows[table].items()))
            if how == len(MUTATIONS) + 1:
                txn.put(table, row, theirs)
                txn.put(table, other, data)
                return f"{table}: exchanged with another"
            name = self.drawn.choice((flipped_bit, cut_off, longer))(row, self.drawn) or b"?"
            txn.remove_row(table, row)
            txn.put(table, name[:500], data)
            return f"{table}: under another name"

    def restore(self) -> None:
        """Put the store back as it was."""
        shutil.rmtree(self.root)
        shutil.copytree(self.whole, self.root)

    def ask(self, what: str, *, must_hit: bool) -> int:
        """Ask for every entry as one process. Puts what was missed; returns how many that were."""
        missed = 0
        with self.cache() as cache:
            for n in range(COUNT):
                before = cache.stats.snapshot()
                try:
                    found = cache.get(entries.layer(n), entries.key(n))
                    cache.parts(entries.layer(n), entries.key(n))
                except Exception as error:
                    self.figures.faults[f"{what}: {type(error).__name__}: {error}"] += 1
                    continue
                counted = cache.stats.snapshot().since(before)
                if found is None:
                    missed += 1
                    self.figures.faults[f"{what}: a miss that is not counted"] += counted.misses != 1
                    for _, outcome, reason in counted.reasons:
                        self.figures.counts[f"{outcome}: {reason}"] += 1
                    self.figures.faults[f"{what}: does not come back"] += must_hit
                    put(cache, n)
                elif found != entries.value(n):
                    self.figures.faults[f"{what}: wrong value"] += 1
                else:
                    self.figures.faults[f"{what}: a hit that is not counted"] += counted.hits != 1
            cache.flush()
            if must_hit:
                self._use(cache, what)
        return missed

    def _use(self, cache: Cache, what: str) -> None:
        """What else reads the rows: none of it may raise what is not the store's own error."""
        store = cache.store
        try:
            [*store.scan(), *store.runs(), *store.counters(), *store.reasons()]
            store.like("fx", entries.draft(3).parts)
            store.touch([item.id for item in store.scan()])
            store.add_run({"layers": {"fx": {"hit": 1}}, "reasons": [], "saved_ns": {}})
            new = range(COUNT, COUNT + 4)  # these share a piece and values of parts with older ones
            store.write([entries.draft(n) for n in new])
            store.delete([item.id for item in store.scan() if item.record and int(item.record.label) % 3])
            store.write([entries.draft(n) for n in (*range(COUNT), *new)])
            self.figures.faults[f"{what}: wrong value after it was replaced"] += sum(
                entries.read(store, n) != entries.value(n) for n in (*range(COUNT), *new)
            )
        except Exception as error:
            self.figures.faults[f"{what}: {type(error).__name__} while using the store: {error}"] += 1
        snapshot = cache.stats.snapshot()
        for (_, outcome, reason), n in snapshot.reasons.items():
            if outcome == "error":
                self.figures.faults[f"{what}: {reason}"] += n


def put(cache: Cache, n: int) -> None:
    one = entries.draft(n)
    cache.put(one.layer, one.key, one.value, label=one.label, parts=one.parts, pieces=one.pieces)


def run(folder: str, mutations: int = 10_000, seed: int = 1) -> Figures:
    """Change one row `mutations` times, each time in a store that was whole."""
    figures = Figures()
    bench = Bench(Path(folder) / "mutated", seed, figures)
    for _ in range(mutations):
        what = bench.mutate()
        figures.counts["mutations"] += 1
        try:
            missed = bench.ask(what, must_hit=False)
            figures.counts["noticed"] += missed > 0
            bench.ask(f"{what}, then put again", must_hit=True)
        except NewerStore:  # a changed format number cannot be told from a later one
            figures.counts["refused: newer"] += 1
        bench.restore()
    return figures
