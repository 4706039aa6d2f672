"""Power loss: what may be on the disk when the machine stops at any moment, and what the store makes of it.

A writer runs under the shim, which logs every write, sync and change of length of `data.mdb`, from its first byte on,
and a mark wherever `Store.write` or `Store.sync` has returned. A cut at any place of the log gives the files that a
disk may hold after it: what was written before the last sync is there; of what came later any part may be, in any order,
cut anywhere at the borders of sectors. `lock.mdb` and `holders` are never synced, so they are old, zeroed or gone.

Promised (`kcache.store`): the store opens and its tree holds together; every commit but the last before the cut is
there, and the last one too if `sync` had returned; values are right.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kcache.counters import Stats
from kcache.errors import StoreError
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries, host
from tests.faults.figures import Figures

MAX_SIZE = 64 * MIB
SECTOR = 512
SYNCED = 1 << 32
"""Added to a mark: `Store.sync` has returned since the commit of that number."""
_HEAD = struct.Struct("=cQQ")


@dataclass(frozen=True)
class Event:
    """One line of the log: kind W (write), S (sync), T (length) or M (mark)."""

    kind: str
    where: int
    data: bytes = b""


def events(path: Path) -> list[Event]:
    found, content, at = [], path.read_bytes(), 0
    while at < len(content):
        kind, where, size = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        found.append(Event(kind.decode(), where, content[at : at + size]))
        at += size
    return found


def size(n: int) -> int:
    return 400_000 if n % 31 == 0 else 0


def writer(root: Path, log: Path, commits: int, seed: int) -> int:
    """The program that the power fails for: commit `n` stores entries `3 n` to `3 n + 2`, now and then some leave."""
    drawn = random.Random(seed)
    host.log_to(log)
    store = Store.open(root, max_size=MAX_SIZE)
    for n in range(commits):
        store.write([entries.draft(m, size(m)) for m in range(3 * n, 3 * n + 3)])
        host.mark(n)
        if drawn.random() < 0.2:
            store.sync()
            host.mark(SYNCED + n)
        if n >= 20 and drawn.random() < 0.3:  # freed pages are what a later commit writes over
            gone = drawn.randrange(n - 10)
            store.delete([item.id for item in store.scan() if item.record and int(item.record.label) // 3 == gone])
            with open(log.with_name("gone"), "a") as file:
                file.write(f"{gone}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


@dataclass
class Disk:
    """The file as it may be after a cut: what is certain, and what was written since."""

    certain: bytearray = field(default_factory=bytearray)
    since: list[Event] = field(default_factory=list)
    commits: int = 0
    """Commits that had returned."""
    kept: int = 0
    """Of these, how many have to be there."""

    def take(self, event: Event) -> None:
        if event.kind == "S":
            self.certain = self.image(lambda sector: True)
            self.since = []
        elif event.kind == "M":
            if event.where < SYNCED:
                self.commits = event.where + 1
                self.kept = max(self.kept, self.commits - 1)
            else:
                self.kept = event.where - SYNCED + 1
        else:
            self.since.append(event)

    def image(self, reached: Callable[[int], bool]) -> bytearray:
        """The file, with those sectors written since the last sync for which `reached(number)` says so."""
        file = bytearray(self.certain)
        number = 0
        for event in self.since:
            if event.kind == "T":
                if reached(number):
                    file = file[: event.where].ljust(event.where, b"\0")
                number += 1
                continue
            for start in range(0, len(event.data), SECTOR):
                if reached(number):
                    piece, at = event.data[start : start + SECTOR], event.where + start
                    file = file.ljust(at + len(piece), b"\0")
                    file[at : at + len(piece)] = piece
                number += 1
        return file


def losses(drawn: random.Random) -> list[tuple[str, Callable[[int], bool]]]:
    """Ways in which what was not synced may have reached the disk."""
    share = drawn.random()
    first = drawn.randrange(40)
    return [
        ("nothing", lambda n: False),
        ("everything", lambda n: True),
        ("some sectors", lambda n: drawn.random() < share),
        ("all but the first", lambda n: n >= first),
        ("the first alone", lambda n: n < first),
    ]


def run(folder: str, commits: int = 120, cuts: int = 400, seed: int = 1) -> Figures:
    """Cut the log of one writer at `cuts` places, lose what was not synced in each of several ways, and look."""
    figures, drawn = Figures(), random.Random(seed)
    root, log = Path(folder) / "store", Path(folder) / "log"
    log.with_name("gone").touch()
    pid = entries.forked(lambda: writer(root, log, commits, seed))
    os.waitpid(pid, 0)
    gone = {int(line) for line in log.with_name("gone").read_text().split()}
    listed = events(log)
    figures.counts["writes"] = sum(event.kind == "W" for event in listed)
    figures.counts["syncs"] = sum(event.kind == "S" for event in listed)
    chosen = set(drawn.sample(range(1, len(listed) + 1), min(cuts, len(listed))))
    disk = Disk()
    for n, event in enumerate(listed, 1):
        disk.take(event)
        if n in chosen:
            figures.counts["cuts"] += 1
            for name, reached in losses(drawn):
                copy = Path(folder) / "after"
                restart(root, copy, disk.image(reached), drawn)
                figures.counts["disks"] += 1
                for problem in check(copy, disk, gone):
                    figures.faults[f"cut {n}, {name}: {problem}"] += 1
    return figures


def restart(root: Path, copy: Path, file: bytearray, drawn: random.Random) -> None:
    """The directory as the machine finds it when it is up again."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root / "v1", copy / "v1")
    (copy / "v1" / "data.mdb").write_bytes(file)
    for name in ("README", "CACHEDIR.TAG"):
        if drawn.randrange(2):
            (copy / "v1" / name).write_bytes(b"")
    for name in ("lock.mdb", "holders"):
        path = copy / "v1" / name
        content = bytearray(path.read_bytes())
        fate = drawn.randrange(4)
        if fate == 0:
            path.unlink()
        elif fate == 1:
            path.write_bytes(bytes(len(content)))
        elif fate == 2:
            content[64] ^= 1  # in `holders`: that someone is inside
            path.write_bytes(content)


def check(root: Path, disk: Disk, gone: set[int]) -> list[str]:
    """What is not as promised. `gone` are commits whose entries were removed at some time."""
    stats = Stats()
    try:
        store = Store.open(root, max_size=MAX_SIZE, stats=stats)
        there = {int(item.record.label) for item in store.scan() if item.record}
        takes = store.write([entries.draft(10**6)]) == [""]
        store.close()
    except StoreError as error:
        return [str(error)]
    wrong = [f"{name} at open" for name in stats.snapshot().reasons if disk.kept]
    if disk.kept:
        wrong += [
            f"commit {n} of {disk.commits} is lost" for n in range(disk.kept)
            if n not in gone and not {3 * n, 3 * n + 1, 3 * n + 2} <= there
        ]  # fmt: skip
    if not takes:
        wrong.append("it takes no writes")
    return wrong + entries.audit(root, expected=lambda n: entries.value(n, size(n)))
