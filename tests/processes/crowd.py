"""Many processes on one small store, which keep being killed in the middle of what they do.

Each worker opens the store and then reads, writes and evicts at random; another takes its place when it is done or
dead. Two kinds of entry: `churn`, large and cheap to make, so that something is always being evicted, and `kept`, small
and dear, so that eviction never gets to them: once one is committed it may never be missing again. What is committed,
and when each process began what it is doing, stands in memory that all share.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
from collections import Counter
from pathlib import Path

from kcache.counters import Stats
from kcache.errors import Damaged, StoreError
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries
from tests.faults.figures import Figures

MAX_SIZE = 48 * MIB
KEPT, CHURN = 300, 400
KEPT_COST_NS = 200 * 10**9
"""Seconds of compiling that make an entry look a week younger than one that cost nothing."""
SLOW = 2.0
"""An operation that takes longer counts as hanging."""
_TALLY = struct.Struct("<Q")
COUNTED = ("get", "hit", "put", "stored", "present", "busy", "evict", "open", "wrong", "lost", "damaged", "refused")
"""What workers count, and in which order it stands in the shared memory."""


class Board:
    """Memory that every process of the crowd sees."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.map = mmap.mmap(-1, KEPT + 8 * (processes + len(COUNTED) * processes))

    def committed(self, n: int) -> bool:
        return self.map[n] == 1

    def commit(self, n: int) -> None:
        self.map[n] = 1

    def begin(self, place: int, now: float) -> None:
        """Note when the process in `place` began what it is doing; 0.0 if nothing."""
        struct.pack_into("<d", self.map, KEPT + 8 * place, now)

    def began(self, place: int) -> float:
        return float(struct.unpack_from("<d", self.map, KEPT + 8 * place)[0])

    def count(self, place: int, name: str) -> None:
        at = KEPT + 8 * (self.processes + place * len(COUNTED) + COUNTED.index(name))
        _TALLY.pack_into(self.map, at, _TALLY.unpack_from(self.map, at)[0] + 1)

    def counts(self) -> Counter[str]:
        sums: Counter[str] = Counter()
        for place in range(self.processes):
            for n, name in enumerate(COUNTED):
                at = KEPT + 8 * (self.processes + place * len(COUNTED) + n)
                sums[name] += _TALLY.unpack_from(self.map, at)[0]
        return sums


def size(n: int) -> int:
    """Size of entry `n`: the first `KEPT` are small."""
    return 700 + 10 * (n % 100) if n < KEPT else 20_000 + 1_000 * (n % 400)


def value(n: int) -> bytes:
    return entries.value(n, size(n))


def worker(root: Path, board: Board, place: int, operations: int, seed: int) -> int:
    """One process of the crowd. Its exit code is 0 whatever it saw; what it saw is on the board."""
    drawn = random.Random(seed)
    board.begin(place, time.monotonic())
    try:
        store = Store.open(root, max_size=MAX_SIZE, stats=Stats())
    except StoreError as error:
        board.count(place, "busy" if error.reason == "busy" else "refused")
        return 0
    board.count(place, "open")
    for _ in range(operations):
        board.begin(place, time.monotonic())
        act = drawn.choices((get, put, evict), (60, 37, 3))[0]
        try:
            act(store, board, place, drawn)
        except StoreError as error:
            board.count(place, "busy" if error.reason == "busy" else "refused")
    board.begin(place, time.monotonic())
    store.close()
    board.begin(place, 0.0)
    return 0


def get(store: Store, board: Board, place: int, drawn: random.Random) -> None:
    board.count(place, "get")
    n = drawn.randrange(KEPT + CHURN)
    was_there = n < KEPT and board.committed(n)
    found = store.variants(entries.layer(n), entries.key(n))
    if not found:
        if was_there:
            board.count(place, "lost")
        return
    try:
        content = store.read(found[0][1])
    except Damaged:
        # Evicted between the two: its row is gone as well. Else it is damage.
        if store.variants(entries.layer(n), entries.key(n)):
            board.count(place, "damaged")
        return
    board.count(place, "hit" if content == value(n) else "wrong")


def put(store: Store, board: Board, place: int, drawn: random.Random) -> None:
    board.count(place, "put")
    batch = [drawn.randrange(KEPT), drawn.randrange(KEPT), KEPT + drawn.randrange(CHURN)]
    drafts = [
        entries.draft(n, size(n), cost_ns=KEPT_COST_NS if n < KEPT else 0, created_ns=time.time_ns()) for n in batch
    ]
    for n, reason in zip(batch, store.write(drafts), strict=True):
        if reason in ("", "present"):
            board.count(place, "present" if reason else "stored")
            if n < KEPT:
                board.commit(n)


def evict(store: Store, board: Board, place: int, drawn: random.Random) -> None:
    board.count(place, "evict")
    store.evict(drawn.randrange(6, 16) * MIB)


class Crowd:
    """The processes that are alive, and what happened to those that are not."""

    def __init__(self, root: Path, processes: int, operations: int, seed: int) -> None:
        self.root = root
        self.operations = operations
        self.board = Board(processes)
        self.drawn = random.Random(seed)
        self.alive: dict[int, int] = {}  # pid -> its place
        self.figures = Figures()
        self.slow: set[tuple[int, float]] = set()

    def fill(self) -> None:
        free = set(range(self.board.processes)) - set(self.alive.values())
        for place in free:
            seed = self.drawn.randrange(1 << 40)
            pid = entries.forked(lambda: worker(self.root, self.board, place, self.operations, seed))  # noqa: B023
            self.alive[pid] = place
            self.figures.counts["processes"] += 1

    def kill_one(self) -> None:
        pid = self.drawn.choice(list(self.alive))
        os.kill(pid, signal.SIGKILL)
        self._ended(*os.waitpid(pid, 0))

    def reap(self) -> None:
        while self.alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._ended(pid, status)

    def _ended(self, pid: int, status: int) -> None:
        place = self.alive.pop(pid)
        self.board.begin(place, 0.0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            self.figures.counts["kills"] += 1
        elif code:
            self.figures.faults[f"ended with {code}"] += 1
        else:
            self.figures.counts["finished"] += 1

    def look(self) -> None:
        """Note what has been going on for longer than it may."""
        now = time.monotonic()
        for place in self.alive.values():
            began = self.board.began(place)
            if began:
                self.figures.largest("longest_s", now - began)
                if now - began > SLOW:
                    self.slow.add((place, began))


def run(
    root: Path, *, seconds: float, processes: int = 32, operations: int = 200, every: float = 0.1, seed: int = 1
) -> Figures:
    """Let a crowd of `processes` work on the store in `root` for `seconds`, killing one of them `every` so often."""
    Store.open(root, max_size=MAX_SIZE).close()
    crowd = Crowd(root, processes, operations, seed)
    end = time.monotonic() + seconds
    due = time.monotonic() + every
    while time.monotonic() < end:
        crowd.reap()
        crowd.fill()
        crowd.look()
        if time.monotonic() >= due:
            crowd.kill_one()
            due += every
        time.sleep(0.01)
    patience = time.monotonic() + 30
    while crowd.alive and time.monotonic() < patience:
        crowd.reap()
        crowd.look()
        time.sleep(0.01)
    for pid in crowd.alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        crowd.figures.faults["never ended"] += 1
    return summed(crowd)


def summed(crowd: Crowd) -> Figures:
    """What the processes saw, and what is in the store when all are gone."""
    figures, board = crowd.figures, crowd.board
    counts = board.counts()
    for name in ("wrong", "lost", "damaged", "refused"):
        figures.faults[name] += counts.pop(name)
    figures.counts.update(counts)
    figures.faults[f"operations over {SLOW:.0f} s"] += len(crowd.slow)
    figures.faults["set aside"] += len([name for name in os.listdir(crowd.root) if "unreadable" in name])
    problems = entries.audit(crowd.root, expected=value)
    figures.faults["problems at the end"] += len(problems)
    figures.notes["problems"] = problems[:10]
    store = Store.open(crowd.root, max_size=MAX_SIZE)
    there = {int(item.record.label) for item in store.scan() if item.record}
    committed = {n for n in range(KEPT) if board.committed(n)}
    figures.counts["committed for good"] = len(committed)
    figures.faults["lost"] += len(committed - there)
    figures.faults["writes refused at the end"] += store.write([entries.draft(10**6)]) != [""]
    figures.notes["size_on_disk"], figures.notes["max_size"] = store.size_on_disk(), MAX_SIZE
    figures.faults["too large"] += store.size_on_disk() > MAX_SIZE
    store.close()
    return figures


def run_in(folder: str, seconds: float) -> Figures:
    return run(Path(folder) / "crowd", seconds=seconds)
