"""No room, no permission, no memory: the program's result is right, it ends with 0, one warning says why.

Each of `CASES` runs in a process that may mount file systems of its own (`host.call(..., mounts=True)`). It sends
programs (`tests.faults.program`) into the trouble that it makes. Faults: a wrong result, another exit code, more than
one warning or none, a reason that is not counted, an entry that was stored and cannot be read afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries, program
from tests.faults.figures import Figures

MORE = 700
"""Entries of a program that needs more than 8 MiB."""
MANY = 6000
"""Entries of a program that needs more than `LIMIT` bytes."""
LIMIT = 64 * MIB
NOBODY = 65534


@dataclass(frozen=True)
class Ended:
    """What a program said: its JSON line, its warnings."""

    said: dict[str, Any]
    warnings: list[str]

    @property
    def reasons(self) -> set[str]:
        """Reasons of what was not stored, of errors and of damage."""
        return {reason for _, outcome, reason, _ in self.said["reasons"] if outcome not in ("miss", "hit")}


class Case:
    """One kind of trouble, in `folder`. `figures` are what comes of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.point = folder / "disk"
        self.root = self.point / "store"
        self.max_size = 64 * MIB
        self.group: Path | None = None
        self.figures = Figures()
        self.point.mkdir(parents=True)

    def start(self, first: int, last: int, *options: object) -> subprocess.Popen[str]:
        env = {name: text for name, text in os.environ.items() if not name.startswith("KCACHE")}
        env |= {"KCACHE_DIR": str(self.root), "KCACHE_MAX_SIZE": str(self.max_size)}
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HOME"):
            env[name] = str(self.folder / name)
        command = [sys.executable, "-m", "tests.faults.program", str(first), str(last), *map(str, options)]
        if self.group:  # joined before the program begins, so that all its memory counts
            command = ["sh", "-c", f'echo $$ > {self.group}/cgroup.procs && exec "$@"', "sh", *command]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, process: subprocess.Popen[str], result: str) -> Ended:
        """Wait for a program and check what must hold whatever happened."""
        out, err = process.communicate(timeout=300)
        lines = out.splitlines()
        said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        warnings = [line for line in (*lines, *err.splitlines()) if line.startswith("kcache")]
        self.figures.counts["programs"] += 1
        self.expect("exit code", process.returncode == 0, err[-2000:])
        self.expect("result", said.get("result") == result, err[-2000:])
        return Ended({"stored": 0, "hits": 0, "reasons": [], **said}, warnings)

    def run(self, first: int, last: int, *options: object) -> Ended:
        return self.end(self.start(first, last, *options), program.expected(first, last))

    def compile(self) -> Ended:
        """A program that compiles with torch, all of whose other caches are empty."""
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.end(self.start(0, 0, "--torch"), "right")

    def trouble(self, ended: Ended, *reasons: str) -> None:
        """Check that `ended` gave one warning and counted one of `reasons` and no other."""
        self.expect("one warning", len(ended.warnings) == 1, str(ended.warnings))
        self.expect("reason", bool(ended.reasons) and ended.reasons <= set(reasons), str(sorted(ended.reasons)))
        for reason in ended.reasons:
            self.figures.counts[f"reason: {reason}"] += 1

    def readable(self, first: int, last: int, at_least: int) -> Ended:
        """Check that a program gets `at_least` so many entries from the store."""
        ended = self.run(first, last)
        self.expect("what was stored is read", ended.said["hits"] >= at_least, f"{ended.said} {ended.warnings}")
        return ended

    def sound(self) -> None:
        for problem in entries.audit(self.root):
            self.expect(problem, False, "")

    def expect(self, what: str, holds: bool, more: str) -> None:
        if not holds:
            self.figures.faults[f"{self.name}: {what} {more}".strip()] += 1

    @contextlib.contextmanager
    def disk(self, size: int) -> Iterator[Path]:
        """A file system of `size` bytes in memory at `point`."""
        path = self.point
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)

    def fill(self, path: Path) -> None:
        """Take every byte that is left."""
        with open(path / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))


# --- full disks ---


def full_while_storing(case: Case) -> None:
    """One program after another stores more than there is room for."""
    with case.disk(8 * MIB):
        first = case.run(0, MORE)
        case.trouble(first, "write: disk-full")
        case.expect("something was stored", first.said["stored"] > 50, str(first.said))
        case.readable(0, MORE, first.said["stored"])
        case.sound()


def full_under_load(case: Case) -> None:
    """Eight programs at once store more than there is room for; what each was told is stored is there."""
    with case.disk(8 * MIB):
        ranges = [(n * 100, n * 100 + 200) for n in range(8)]
        started = [case.start(*both) for both in ranges]
        ended = [case.end(one, program.expected(*both)) for one, both in zip(started, ranges, strict=True)]
        for one in ended:
            full = "write: disk-full" in one.reasons
            case.figures.counts["told that the disk is full"] += full
            case.expect("one warning or none", len(one.warnings) == full, str(one.warnings))
            case.expect("reason", one.reasons <= {"write: disk-full", "present"}, str(one.reasons))
        case.expect("the disk was full", case.figures.counts["told that the disk is full"] > 0, "")
        stored = sum(one.said["stored"] for one in ended)
        case.expect("something was stored", stored > 50, str(stored))
        store = Store.open(case.root)
        case.expect("all that was stored is there", store.count() == stored, f"{store.count()} of {stored}")
        store.close()
        case.sound()


def full_before_opening(case: Case) -> None:
    """The disk is full to the last byte when the program starts."""
    with case.disk(8 * MIB) as disk:
        stored = case.run(0, 60).said["stored"]
        case.fill(disk)
        case.trouble(case.run(1000, 1040), "write: disk-full")
        ended = case.readable(0, 60, stored)
        case.expect("no entry is missed", ended.said["hits"] == 60, str(ended.said))
        case.sound()


def full_before_the_store_is_made(case: Case) -> None:
    with case.disk(1 * MIB) as disk:
        case.fill(disk)
        case.trouble(case.run(0, 20), "not enabled: disk-full")


# --- read-only ---


def remounted_readonly(case: Case) -> None:
    with case.disk(8 * MIB) as disk:
        stored = case.run(0, 60).said["stored"]
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        ended = case.readable(0, 80, stored)
        case.trouble(ended, "read-only")


def readonly_directory(case: Case) -> None:
    """Of another user than root, who may write anywhere."""
    user = NOBODY
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    if not first <= user < first + count:
        case.figures.counts["left out: nobody but root is here"] += 1
        return
    case.point = Path("/mnt")  # which everybody may enter
    case.root = case.point / "store"
    with case.disk(8 * MIB) as disk:
        case.root.mkdir()
        os.chown(case.root, user, user)
        os.chmod(disk, 0o755)
        stored = case.run(0, 60, "--user", user).said["stored"]
        for path in (case.root / "v1", case.root):
            os.chmod(path, 0o500)
        ended = case.run(0, 80, "--user", user)
        case.expect("what was stored is read", ended.said["hits"] == stored > 0, f"{ended.said} {ended.warnings}")
        case.trouble(ended, "read-only")


# --- limits ---


def file_size_limit(case: Case) -> None:
    first = case.run(0, MORE, "--limit", "RLIMIT_FSIZE", 3 * MIB)
    case.trouble(first, "write: file-size-limit")
    case.readable(0, MORE, first.said["stored"])
    case.sound()


def file_size_limit_before_the_store_is_made(case: Case) -> None:
    case.trouble(case.run(0, 20, "--limit", "RLIMIT_FSIZE", 8192), "not enabled: file-size-limit")


def address_space_limit(case: Case) -> None:
    """Less than the map of the store: a smaller one is used, and nothing is lost by that."""
    ended = case.run(0, 60, "--limit", "RLIMIT_AS", 400 * MIB)
    case.expect("no warning", not ended.warnings, str(ended.warnings))
    case.readable(0, 60, ended.said["stored"])


def no_address_space(case: Case) -> None:
    """Less than any map."""
    stored = case.run(0, 60).said["stored"]
    used = _address_space()
    case.trouble(case.run(0, 60, "--limit", "RLIMIT_AS", used + 24 * MIB), "not enabled: no-memory")
    case.readable(0, 60, stored)
    case.sound()


def _address_space() -> int:
    """Bytes of address space of a process that has imported what a program imports."""
    code = "import tests.faults.program; print(open('/proc/self/statm').read().split()[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) * resource.getpagesize()


def memory_limit(case: Case) -> None:
    """A group of processes may use less memory than the store is large: pages of the file are given up and read again."""
    group = _memory_group(f"kcache-{os.getpid()}", LIMIT)
    if group is None:
        case.figures.counts["left out: no group of processes can be made here"] += 1
        return
    case.max_size, case.group = 512 * MIB, group
    try:
        ended = case.run(0, MANY)
        case.expect("no warning", not ended.warnings, str(ended.warnings))
        case.expect("all is stored", ended.said["stored"] == MANY, str(ended.said))
        size = (case.root / "v1" / "data.mdb").stat().st_size
        case.expect("the store is larger than the limit", size > 1.2 * LIMIT, str(size))
        case.readable(0, MANY, MANY)
    finally:
        group.rmdir()
    case.sound()


def _memory_group(name: str, limit: int) -> Path | None:
    """A control group whose processes share `limit` bytes of memory, swap not counted; None where none can be made."""
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / name
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return group
    return None


def no_shared_memory(case: Case) -> None:
    """No /dev/shm that could be written."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", "/dev/shm"], check=True)
    ended = case.run(0, 60)
    case.expect("no warning", not ended.warnings, str(ended.warnings))
    case.readable(0, 60, ended.said["stored"])
    case.sound()


# --- errors in the middle ---

ERRORS = {
    errno.ENOSPC: "write: disk-full",
    errno.EDQUOT: "write: quota",
    errno.EROFS: "write: read-only",
    errno.EIO: "write: input-output",
    errno.EFBIG: "write: file-size-limit",
}


def failing_calls(case: Case) -> None:
    """From some call to the kernel on, every write and sync of the file fails."""
    for number, reason in ERRORS.items():
        for at in (1, 2, 3, 4, 7) if number == errno.ENOSPC else (1, 3):
            shutil.rmtree(case.root, ignore_errors=True)
            before = case.run(0, 20).said["stored"]
            ended = case.run(20, 120, "--fail", at, number)
            case.trouble(ended, reason)
            case.readable(0, 120, before + ended.said["stored"])
            case.sound()


# --- torch ---


def compiling_on_a_full_disk(case: Case) -> None:
    with case.disk(MIB) as disk:
        os.mkdir(case.root)
        Store.open(case.root, max_size=64 * MIB).close()
        case.fill(disk)
        case.trouble(case.compile(), "write: disk-full")


def compiling_from_a_readonly_disk(case: Case) -> None:
    with case.disk(8 * MIB) as disk:
        case.expect("stored", case.compile().said["stored"] > 0, "")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        ended = case.compile()
        case.expect("nothing is compiled", ended.said["hits"] > 0 == ended.said["misses"], str(ended.said))
        case.trouble(ended, "read-only")


def compiling_without_shared_memory(case: Case) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", "/dev/shm"], check=True)
    case.expect("stored", case.compile().said["stored"] > 0, "")
    ended = case.compile()
    case.expect("nothing is compiled", ended.said["hits"] > 0 == ended.said["misses"], str(ended.said))
    case.expect("no warning", not ended.warnings, str(ended.warnings))


CASES: dict[str, Callable[[Case], None]] = {
    case.__name__: case
    for case in (
        *(full_while_storing, full_under_load, full_before_opening, full_before_the_store_is_made),
        *(remounted_readonly, readonly_directory, file_size_limit, file_size_limit_before_the_store_is_made),
        *(address_space_limit, no_address_space, memory_limit, no_shared_memory, failing_calls),
        *(compiling_on_a_full_disk, compiling_from_a_readonly_disk, compiling_without_shared_memory),
    )
}
SHIMMED = {"failing_calls"}


def run(folder: str, name: str) -> Figures:
    """One of `CASES` in `folder`, which must be new."""
    case = Case(name, Path(folder))
    CASES[name](case)
    return case.figures
