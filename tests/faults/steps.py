"""`kill -9` at each step of what a writer does: at each of its calls to the kernel, and at each line of kcache.

For every step a fresh copy of one store is given to a child that does one thing (`DEEDS`) and is killed there. Then the
store must open, hold together and have every entry that it had before the child began, and the child's own entry must be
whole or absent; and it must take the next write.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import kcache
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries, host
from tests.faults.figures import Figures

MAX_SIZE = 16 * MIB
BEFORE = 60
"""Entries that are there before the child begins."""
NEW = range(1000, 1006)
SLOW = 2.0


def write(store: Store) -> None:
    store.write([entries.draft(n) for n in NEW])


def write_large(store: Store) -> None:
    store.write([entries.draft(n, 1_500_000) for n in NEW])


def write_queued(store: Store) -> None:
    """Through the cache and its writer, but in this thread."""
    cache = Cache(store, Settings(dir=store.root), Stats())
    cache._writer._start = lambda: None  # type: ignore[method-assign]
    for n in NEW:
        one = entries.draft(n)
        cache.put(one.layer, one.key, one.value, label=one.label, parts=one.parts, pieces=one.pieces)
    cache.close()


def evict(store: Store) -> None:
    store.evict(store.live_bytes() // 2)


def drop(store: Store) -> None:
    one = entries.draft(3)
    (variant, record), *_ = store.variants(one.layer, one.key)
    store.drop(one.layer, one.key, variant, record)


def touch(store: Store) -> None:
    store.touch([item.id for item in store.scan()])


def clear(store: Store) -> None:
    store.clear()


DEEDS: dict[str, tuple[Callable[[Store], None], set[int]]] = {
    # name: what is done, and which entries it may take away
    "write": (write, set()),
    "write large": (write_large, set()),
    "write queued": (write_queued, set()),
    "evict": (evict, set(range(BEFORE))),
    "drop": (drop, {3}),
    "touch": (touch, set()),
    "clear": (clear, set(range(BEFORE))),
}


def opened(root: Path) -> Store:
    return Store.open(root, max_size=MAX_SIZE, stats=Stats())


def base(folder: Path) -> Path:
    """A store with `BEFORE` entries, whose free pages have been reused."""
    root = folder / "base"
    store = opened(root)
    store.write([entries.draft(n) for n in range(500, 520)])
    for n in range(0, BEFORE, 10):
        store.write([entries.draft(m) for m in range(n, n + 10)])
    store.delete([item.id for item in store.scan() if item.record and int(item.record.label) >= 500])
    store.close()
    return root


class Steps:
    """One deed, killed at one step after another, each time on a fresh copy of `base`."""

    def __init__(self, folder: Path, name: str, figures: Figures) -> None:
        self.deed, self.may_go = DEEDS[name]
        self.name = name
        self.base = folder / "base"
        self.root = folder / "copy"
        self.figures = figures

    def child(self, before: Callable[[], Any], after: Callable[[], int] = lambda: 0) -> int:
        """Do the deed in a child between `before` and `after`. Returns its exit code, or minus the signal."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.base, self.root)

        def work() -> int:
            store = opened(self.root)
            before()
            self.deed(store)
            return after()

        pid = entries.forked(work)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def calls(self) -> int:
        """How many calls to the kernel the deed makes on the file."""
        return self.child(lambda: host.arm(0, 0), host.calls)

    def kill_at_call(self, at: int, how: str) -> None:
        code = self.child(lambda: host.arm(at, host.KILL[how]))
        self.check(code, f"{self.name}: killed {how} call {at}")

    def kill_at_line(self, at: int) -> None:
        code = self.child(lambda: sys.settrace(Lines(at).trace))
        self.check(code, f"{self.name}: killed at line {at}")

    def lines(self) -> int:
        """How many lines of kcache the deed runs through."""
        counter = Lines(-1)
        path = self.root.with_name("lines")

        def after() -> int:
            sys.settrace(None)
            path.write_text(str(counter.seen))
            return 0

        self.child(lambda: sys.settrace(counter.trace), after)
        return int(path.read_text())

    def check(self, code: int, what: str) -> None:
        """The store as the child left it."""
        self.figures.counts["kills"] += code == -signal.SIGKILL
        self.figures.counts["not reached"] += code == 0
        if code not in (0, -signal.SIGKILL):
            self.figures.faults[f"{what}: ended with {code}"] += 1
        size = 1_500_000 if self.deed is write_large else 0
        began = time.monotonic()
        for problem in entries.audit(self.root, expected=lambda n: entries.value(n, size if n in NEW else 0)):
            self.figures.faults[f"{what}: {problem}"] += 1
        store = opened(self.root)
        there = {int(item.record.label) for item in store.scan() if item.record}
        for n in set(range(BEFORE)) - self.may_go - there:
            self.figures.faults[f"{what}: entry {n} is lost"] += 1
        if store.write([entries.draft(5000)]) != [""] or entries.read(store, 5000) != entries.value(5000):
            self.figures.faults[f"{what}: it takes no writes"] += 1
        store.close()
        self.figures.faults[f"{what}: set aside"] += any("unreadable" in name for name in os.listdir(self.root))
        self.figures.largest("slowest_recovery_s", time.monotonic() - began)


class Lines:
    """A trace function that kills its process at the `at`-th line of kcache."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.package = os.path.dirname(kcache.__file__)

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.package):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def run(folder: str, line_every: int = 1, deeds: tuple[str, ...] | list[str] = tuple(DEEDS)) -> Figures:
    """Kill at every call of each deed before, in the middle of and after it, and at each `line_every`-th line.

    Needs the shim. `folder` is where the stores are made; on a file system in memory it takes less time.
    """
    figures = Figures()
    base(Path(folder))
    for name in deeds:
        steps = Steps(Path(folder), name, figures)
        number = steps.calls()
        figures.counts["calls"] += number
        for at in range(1, number + 1):
            for how in host.KILL:
                steps.kill_at_call(at, how)
        lines = steps.lines()
        figures.counts["lines"] += lines
        for at in range(1, lines + 1, line_every):
            steps.kill_at_line(at)
    figures.faults["recovery over 2 s"] += figures.notes.get("slowest_recovery_s", 0.0) > SLOW
    return figures
