"""The file of a store as LMDB has it: opened, checked before it is mapped, and what LMDB says of it in kcache's words.

* Before a file is mapped, its length is compared with the last page that it names, and if a process died inside a
  transaction, the whole tree is walked by `lmdb.verify`, which never maps it.
* The map is as large as the limit of the store, so LMDB itself keeps the file below it.

Opening `data.mdb` for the walk happens before this process opens the environment: closing a
descriptor of a file that is open through LMDB would drop its locks (POSIX).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
from lmdb.verify import VerifyError
from lmdb.verify import verify as walk

from .entry import VERSION
from .errors import REASON_OF_ERRNO, NewerStore, StoreError
from .holders import Holders
from .rows import LATER, TABLES, Transaction
from .units import GIB, MIB

MapFull = lmdb.MapFullError
"""Raised by a transaction for which the file has no room; the store evicts and tries again."""
CHECK_WAIT = 5.0
"""Seconds for which whoever opens a suspect store waits until another process has checked it."""
SLACK = 4 * MIB
"""Room above a file that is already larger than its limit: without it nothing could be evicted."""
BROKEN = (
    *(lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError),
    # kcache gives no cause for these, so they speak of the file: a name of no bytes, a tree without end, a table that
    # became another, a transaction in which LMDB met something that it did not report.
    *(lmdb.BadValsizeError, lmdb.CursorFullError, lmdb.PageFullError, lmdb.IncompatibleError, lmdb.BadDbiError),
    lmdb.BadTxnError,
)
"""What LMDB raises where the file itself is at fault."""
_READERS = 1022

_REASONS = (
    (lmdb.ReadersFullError, "readers-full"),
    (lmdb.LockError, "lock"),
    (lmdb.ReadonlyError, "read-only"),
)
_SHORT = (errno.EIO, errno.EINVAL)
"""What LMDB says where the kernel wrote only a part: the second of a copy, whose rest is then not aligned."""


class Unreadable(StoreError):
    """The file is damaged: LMDB cannot read it, or its tree does not hold together."""


def open_lmdb(home: Path, limit: int, *, readonly: bool) -> lmdb.Environment:
    """The environment in `home`, with the largest map up to `limit` that the address space allows."""
    sizes = [limit, *(size for size in (4 * GIB, GIB, 256 * MIB, 64 * MIB) if size < limit)]
    for size in sizes:
        try:
            return lmdb.open(
                os.fsencode(home),
                map_size=size,
                subdir=True,
                readonly=readonly,
                mode=0o600,
                create=not readonly,
                metasync=False,
                readahead=False,
                max_readers=_READERS,
                max_dbs=len(TABLES) + 7,
                max_spare_txns=0,
            )
        except (lmdb.MemoryError, MemoryError):
            continue
    raise StoreError(f"{home}: no address space for a map of {sizes[-1]} bytes. Raise `ulimit -v`", reason="no-memory")


def open_tables(env: lmdb.Environment, *, readonly: bool = False) -> dict[str, Any]:
    """Handles of all tables, made if missing; of a store that may only be read, those that it has."""
    if readonly:
        found = {}
        for name in TABLES:
            try:
                found[name] = env.open_db(name.encode(), create=False)
            except lmdb.NotFoundError:
                if name not in LATER:
                    raise
        return found
    # A writing transaction: py-lmdb loses handles that were opened in one that only reads.
    with env.begin(write=True) as txn:
        return {name: env.open_db(name.encode(), txn=txn) for name in TABLES}


def make(directory: Path) -> None:
    """Put an empty database into `directory`. Raises `StoreError` or `OSError`."""
    with explaining(directory), open_lmdb(directory, MIB * 4, readonly=False) as env:
        tables = open_tables(env)
        with env.begin(write=True) as txn:
            txn.put(b"format", str(VERSION).encode(), db=tables["meta"])
    Holders(directory).close()
    # LMDB leaves holes in the table of readers; a hole that is touched on a full disk ends the process.
    descriptor = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def join(home: Path, *, readonly: bool) -> Holders | None:
    """A slot in `home`, once it is known that the store has killed nobody. None where nothing can be written."""
    try:
        holders = Holders(home)
    except OSError:
        if readonly:
            return None
        raise
    try:
        if holders.died_inside():
            with holders.turn(CHECK_WAIT):
                _check_tree(home, holders)
        holders.join()
    except BaseException:
        holders.close()
        raise
    return holders


def _check_tree(home: Path, holders: Holders) -> None:
    dead = holders.died_inside()  # again: whoever had the turn before may have checked
    if not dead:
        return
    found = problems(home)
    if found:
        raise lmdb.CorruptedError(f"a process died reading it, and {found[0]}")
    holders.forgive(dead)


def problems(home: Path) -> list[str]:
    """What is wrong with the tree in `home`, which this process must not have open. Never maps the file."""
    try:
        return [str(problem) for problem in walk(str(home))]
    except (VerifyError, OSError) as error:
        return [str(error)]


def unsound(error: BaseException, home: Path, holders: Holders | None) -> bool:
    """Whether py-lmdb itself would not open the file, and a walk finds it broken.

    For a version that LMDB never had, py-lmdb has no error of its own.
    """
    if type(error) is not lmdb.Error or error.code:
        return False
    with holders.turn() if holders else contextlib.nullcontext():
        return bool(problems(home))


def check_length(env: lmdb.Environment, home: Path, holders: Holders | None) -> None:
    """Refuse a file that was cut short: touching what is missing would be SIGBUS. Comes before any table is read."""

    def missing() -> tuple[int, int]:
        needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        return needed - os.stat(home / "data.mdb").st_size, needed

    short, needed = missing()
    if short > MIB + needed // 100:
        raise lmdb.CorruptedError(f"data.mdb lacks {short} of {needed} bytes")
    if short > 0 and holders is not None:
        # Pages at the end that were freed before they were ever written are missing rightfully. In turn, so
        # that nobody else makes the file longer meanwhile; by path, so that no descriptor is opened.
        with holders.turn():
            short, needed = missing()
            if short > 0:
                os.truncate(home / "data.mdb", needed)


def check_format(txn: Transaction, home: Path) -> None:
    """Refuse a format that is newer than this kcache (`NewerStore`), and one that is no number."""
    data = txn.get("meta", b"format")
    if data is None:
        return
    if not data.isdigit():
        raise lmdb.CorruptedError(f"its format is given as {data[:20]!r}")
    found = int(data)
    if found > VERSION:
        raise NewerStore(f"{home} has format {found}, newer than this kcache reads ({VERSION})")


@contextlib.contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Raise `StoreError` about `path` in place of what LMDB or the system refuses in the block."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise explained(error, path) from error


def explained(error: lmdb.Error | OSError, home: Path) -> StoreError:
    """What to raise in place of `error`, with the reason under which it is counted."""
    reason = next((name for kind, name in _REASONS if isinstance(error, kind)), "")
    number = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    reason = reason or REASON_OF_ERRNO.get(number or 0, "") or (_why_short(home) if number in _SHORT else "")
    return StoreError(f"{home}: {error}" + (f" ({reason})" if reason else ""), reason=reason)


def _why_short(home: Path) -> str:
    """Which limit the kernel met when it wrote only a part."""
    with contextlib.suppress(OSError):
        size, limit = os.stat(home / "data.mdb").st_size, resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and size + GIB // 64 > limit:
            return "file-size-limit"
        facts = os.statvfs(home)
        if facts.f_bavail * facts.f_frsize < 16 * MIB:
            return "disk-full"
    return "input-output"
