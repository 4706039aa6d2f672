"""What one process may do to others on the same store: hold an old view, take every slot, live in another namespace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kcache import datafile
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.errors import StoreError
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries

MAX_SIZE = 16 * MIB


def opened(root) -> Store:
    return Store.open(root, max_size=MAX_SIZE, stats=Stats())


@contextmanager
def held_open(root, *, write: bool = False) -> Iterator[None]:
    """A child is inside a transaction and stays there, until it is killed at the end of the block."""
    inside, said = os.pipe()

    def work() -> int:
        with opened(root).transaction(write=write) as txn:
            txn.entries("index")
            os.write(said, b"!")
            signal.pause()
        return 0

    pid = entries.forked(work)
    os.close(said)
    try:
        assert os.read(inside, 1) == b"!"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(inside)


def test_reader_that_never_ends_costs_room_and_nothing_else(tmp_path):
    """Pages freed after it began stay taken. Writes stop at the size of the store, and go on when it is gone."""
    root = tmp_path / "s"
    opened(root).close()
    with held_open(root):
        store = opened(root)
        outcomes = [store.write([entries.draft(n, MIB, created_ns=n)])[0] for n in range(60)]
        assert outcomes[0] == ""
        assert set(outcomes) == {"", "map-full"}
        assert os.stat(store.home / "data.mdb").st_size <= MAX_SIZE
    store.close()
    store = opened(root)
    assert [store.write([entries.draft(n, MIB)]) for n in range(100, 104)][-1] == [""]
    assert entries.read(store, 103) == entries.value(103, MIB)
    store.close()


def test_more_readers_than_slots_is_a_counted_miss(tmp_path, monkeypatch):
    root = tmp_path / "s"
    monkeypatch.setattr(datafile, "_READERS", 2)
    store = opened(root)
    store.write([entries.draft(0)])
    stats = Stats()
    cache = Cache(store, Settings(dir=root, max_size=MAX_SIZE), stats, keep_runs=False)
    with held_open(root), held_open(root):
        assert cache.get(entries.layer(0), entries.key(0)) is None
        assert (entries.layer(0), "error", "read: readers-full") in stats.snapshot().reasons
    cache.close()
    store = opened(root)  # whoever opens the store frees the slots of the dead
    assert entries.read(store, 0) == entries.value(0)
    store.close()


OTHER = """
import sys
from pathlib import Path
from kcache.errors import StoreError
from kcache.store import Store
try:
    Store.open(Path(sys.argv[1]))
except StoreError as error:
    print(error.reason)
"""


def test_store_in_use_in_another_pid_namespace_is_refused(tmp_path):
    """There a pid means another process, so LMDB's table of readers would lie."""
    unshare = ["unshare", "--pid", "--fork", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    ask = [*unshare, sys.executable, "-c", OTHER, str(tmp_path / "s")]
    store = opened(tmp_path / "s")
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "pid-namespace\n"
    store.close()
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == ""


def test_no_descriptor_of_the_store_is_opened_while_it_is_open(tmp_path):
    """Closing one would drop the locks that this process holds (POSIX): an audit hook sees every opening."""
    done = subprocess.run([sys.executable, "-c", WATCHED, str(tmp_path / "s")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "seen while opening\n"


WATCHED = """
import os, sys
from pathlib import Path
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.store import Store
from tests.faults import entries

seen = []
def watch(event, args):
    if event == "open" and os.path.basename(os.fsdecode(args[0]) if not isinstance(args[0], int) else "") in FILES:
        seen.append(args[0])
FILES = ("data.mdb", "lock.mdb", "holders")
sys.addaudithook(watch)

root, stats = Path(sys.argv[1]), Stats()
store = Store.open(root, max_size=1 << 24, stats=stats)
if seen:  # `holders`, before anything is locked
    print("seen while opening")
seen.clear()
cache = Cache(store, Settings(dir=root, max_size=1 << 24), stats)
for n in range(40):
    one = entries.draft(n)
    cache.put(one.layer, one.key, one.value, parts=one.parts)
cache.flush()
assert all(cache.get(entries.layer(n), entries.key(n)) for n in range(40))
Store.open(root, max_size=1 << 24).close()
list(store.scan()), store.size_on_disk(), store.live_bytes(), store.runs(), store.sync()
store.evict(1 << 18)
store.clear()
assert not seen, seen
cache.close()
"""


def test_damaged_store_is_set_aside_once_however_many_open_it(tmp_path):
    """As the ranks of a job do: one of them makes the new store, and none takes another's for the damaged one."""
    for round_ in range(6):
        root = tmp_path / str(round_)
        opened(root).close()
        with open(root / "v1" / "data.mdb", "r+b") as file:
            file.write(bytes(8192))
        go = time.monotonic() + 0.2

        def work(n: int) -> int:
            time.sleep(max(0.0, go - time.monotonic()))  # noqa: B023
            return int(opened(root).write([entries.draft(n)]) != [""])  # noqa: B023

        started = [entries.forked(lambda: work(n)) for n in range(8)]  # noqa: B023
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started] == [0] * 8
        assert sorted(name.split("-")[0] for name in os.listdir(root)) == ["v1", "v1.unreadable"]
        assert opened(root).count() == 8


def test_stopped_writer_costs_others_a_bounded_wait_and_no_reading(tmp_path):
    """A job that is suspended in the middle of a write keeps its turn: the others read, and count `busy`."""
    root = tmp_path / "s"
    store = opened(root)
    store.write([entries.draft(n) for n in range(8)])
    with held_open(root, write=True):
        began = time.monotonic()
        with pytest.raises(StoreError) as refused:
            store.write([entries.draft(100)])
        assert refused.value.reason == "busy"
        assert entries.read(store, 3) == entries.value(3)

        def newcomer() -> int:
            stats = Stats()
            cache = Cache.open(Settings(dir=root, max_size=MAX_SIZE), stats, keep_runs=False)
            found = all(cache.get(entries.layer(n), entries.key(n)) == entries.value(n) for n in range(8))
            stored = cache.put("fx", entries.key(101), b"value")
            cache.close()
            return 0 if found and not stored and ("store", "skipped", "busy") in stats.snapshot().reasons else 1

        def forked_child() -> int:
            """It has to open the store anew and cannot: it waits once, and not at every lookup."""
            for n in range(20):
                with pytest.raises(StoreError) as again:
                    entries.read(store, n % 8)
                assert again.value.reason == "busy"
            return 0

        for work in (newcomer, forked_child):
            assert os.waitstatus_to_exitcode(os.waitpid(entries.forked(work), 0)[1]) == 0
        assert time.monotonic() - began < 10
    assert store.write([entries.draft(100)]) == [""]
    store.close()
