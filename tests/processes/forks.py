"""Forks at bad moments, forks of a process with threads, and a pool of spawned workers.

Each show runs in a process of its own (`tests.faults.host`), since it starts threads. A child that does not end is
killed after `PATIENCE` seconds and counts as hanging.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcache import gate
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries
from tests.faults.figures import Figures

MAX_SIZE = 256 * MIB
OLD = 20
"""Entries that are there from the beginning."""
PATIENCE = 20
BUSY = 9
CHILD = 1_000_000
"""Added to the numbers of what children store."""


@contextmanager
def cached(root: Path) -> Iterator[Cache]:
    settings, stats = Settings(dir=root, max_size=MAX_SIZE), Stats()
    cache = Cache(Store.open(root, max_size=MAX_SIZE, stats=stats), settings, stats, keep_runs=False)
    for n in range(OLD):
        put(cache, n)
    cache.flush()
    try:
        yield cache
    finally:
        cache.close()


def put(cache: Cache, n: int) -> None:
    one = entries.draft(n)
    cache.put(one.layer, one.key, one.value, label=one.label, parts=one.parts, pieces=one.pieces)


def right(cache: Cache, n: int) -> bool:
    return cache.get(entries.layer(n), entries.key(n)) == entries.value(n)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def outcome(figures: Figures, name: str, code: int) -> bool:
    """Count how a child ended. Returns whether it stored its entry; one that had no turn says `busy` and has not."""
    figures.counts[name] += 1
    if code == BUSY:
        figures.counts[f"{name}: busy"] += 1
    elif code == -signal.SIGALRM:
        figures.faults[f"{name}: hangs"] += 1
    elif code:
        figures.faults[f"{name}: ended with {code}"] += 1
    return code == 0


def beside(folder: str, times: int = 1000) -> Figures:
    """Fork while another thread is in the middle of a write transaction: the fork waits for its end."""
    figures = Figures()
    root = Path(folder) / "beside"
    begun = threading.Semaphore(0)
    stored: list[int] = []

    with cached(root) as cache:

        def writer() -> None:
            for n in range(times):
                turn.acquire()
                with cache.store.transaction(write=True) as txn:
                    txn.put("leases", b"before %d" % n, b"1")
                    begun.release()
                    time.sleep(0.002)  # the fork begins in here
                    txn.put("leases", b"after %d" % n, b"1")

        turn = threading.Semaphore(0)
        thread = threading.Thread(target=writer)
        thread.start()
        for n in range(times):
            turn.release()
            begun.acquire()
            began = time.monotonic()
            pid = entries.forked(lambda: _in_child(cache, n))  # noqa: B023
            figures.largest("longest_fork_s", time.monotonic() - began)
            if outcome(figures, "forks beside a write transaction", ended(pid)):
                stored.append(n)
        thread.join()
        _rows_and_entries(cache, times, stored, figures)
    return _audited(root, figures)


def inside(folder: str, times: int = 1000) -> Figures:
    """Fork from within a write transaction, which the parent then ends. The child has no store, and is told so."""
    figures = Figures()
    gate.FORK_WAIT = 0.001  # the thread that forks is the one that is inside, so waiting for it is in vain
    root = Path(folder) / "inside"
    with cached(root) as cache:
        store = cache.store

        def child() -> int:
            signal.alarm(PATIENCE)
            put(cache, CHILD)
            found = [cache.get(entries.layer(n), entries.key(n)) for n in range(OLD)]
            cache.flush()
            return 0 if not any(found) and set(cache.stats.snapshot().reasons) == REFUSED else 2

        for n in range(times):
            with store.transaction(write=True) as txn:
                txn.put("leases", b"before %d" % n, b"1")
                pid = entries.forked(child)
                txn.put("leases", b"after %d" % n, b"1")
            outcome(figures, "forks from within a write transaction", ended(pid))
            figures.faults["parent cannot write"] += store.write([entries.draft(CHILD + n)]) != [""]
        _rows_and_entries(cache, times, list(range(times)), figures)
    return _audited(root, figures)


REFUSED = {
    *((layer, "error", "read: fork") for layer in entries.LAYERS),
    *((layer, "miss", "absent") for layer in entries.LAYERS),
    (entries.layer(CHILD), "error", "write: fork"),
}
"""What a child counts that was forked from within a transaction."""


def _rows_and_entries(cache: Cache, times: int, stored: list[int], figures: Figures) -> None:
    with cache.store.transaction() as txn:
        figures.faults["rows of the parent lost"] += 2 * times - len(list(txn.rows("leases", b"")))
    figures.faults["entries lost"] += sum(not right(cache, CHILD + n) for n in stored)


def threads(folder: str, times: int = 300) -> Figures:
    """Fork while threads of the parent read, store and write."""
    figures = Figures()
    root = Path(folder) / "threads"
    stop = threading.Event()
    wrong: list[str] = []
    stored: list[int] = []
    with cached(root) as cache:

        def reader() -> None:
            while not stop.is_set():
                wrong.extend(f"entry {n} in the parent" for n in range(OLD) if not right(cache, n))

        def writer(first: int) -> None:
            n = first
            while not stop.is_set():
                put(cache, n % (first + 2000))
                cache.store.swap("leases", b"%d" % first, cache.store.fetch("leases", b"%d" % first), b"%d" % n)
                n += 1

        workers = [threading.Thread(target=reader) for _ in range(2)]
        workers += [threading.Thread(target=writer, args=(first,)) for first in (10_000, 20_000)]
        for worker in workers:
            worker.start()
        try:
            for n in range(times):
                began = time.monotonic()
                pid = entries.forked(lambda: _in_child(cache, n))  # noqa: B023
                figures.largest("longest_fork_s", time.monotonic() - began)
                if outcome(figures, "forks beside threads", ended(pid)):
                    stored.append(n)
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        figures.faults["wrong in the parent"] += len(wrong)
        figures.faults["entries of children lost"] += sum(not right(cache, CHILD + n) for n in stored)
    return _audited(root, figures)


def _in_child(cache: Cache, n: int) -> int:
    signal.alarm(PATIENCE)
    put(cache, CHILD + n)
    if not right(cache, n % OLD) or not right(cache, CHILD + n):
        return 2
    cache.flush()
    counted = cache.stats.snapshot()
    if (entries.layer(CHILD + n), "error", "write: busy") in counted.reasons:
        return BUSY
    return 0 if counted.total("stored") == 1 else 3


def pool(folder: str, workers: int = 16, tasks: int = 160) -> Figures:
    """A pool of spawned workers, as Inductor and data loaders have them."""
    figures = Figures()
    root = Path(folder) / "pool"
    with cached(root):
        pass
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_open_in_worker, initargs=(str(root),)) as made:
        for n, missed in made.imap_unordered(_task, range(tasks), chunksize=1):
            figures.counts["tasks of a pool"] += 1
            figures.faults[f"task {n}: wrong or missing"] += missed
        made.close()
        made.join()
    with cached(root) as cache:
        figures.faults["entries of workers lost"] += sum(not right(cache, CHILD + n) for n in range(tasks))
    return _audited(root, figures)


_cache: list[Cache] = []
"""The cache of a worker of the pool."""


def _open_in_worker(root: str) -> None:
    settings = Settings(dir=Path(root), max_size=MAX_SIZE)
    _cache.append(Cache.open(settings, Stats()))


def _task(n: int) -> tuple[int, int]:
    (cache,) = _cache
    put(cache, CHILD + n)
    return n, sum(not right(cache, m) for m in (*range(OLD), CHILD + n))


def _audited(root: Path, figures: Figures) -> Figures:
    for problem in entries.audit(root):
        figures.faults[problem] += 1
    return figures
