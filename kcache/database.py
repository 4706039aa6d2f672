"""One LMDB environment per file and process: opened, checked, shared, kept apart over `fork()`.

The only module that opens LMDB. `store` says what it promises; this one keeps these parts of it:

* before a file is mapped, its length is compared with the last page that it names, and if a
  process died inside a transaction, the whole tree is walked by `lmdb.verify`, which never maps
  it; a file that fails is set aside by the caller (`Unreadable`);
* the map is as large as the limit of the store, so LMDB itself keeps the file below it. A
  process with a larger limit may outgrow another's map; the other then adopts the new size;
* a write takes its turn first, see `holders`.

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
from .errors import NewerStore, StoreError
from .gate import Gate
from .holders import Holders
from .rows import LATER, TABLES, Transaction
from .units import GIB, MIB

MapFull = lmdb.MapFullError
"""Raised by a transaction for which the file has no room; the store evicts and tries again."""
CHECK_WAIT = 20.0
"""Seconds for which whoever opens a suspect store waits until another process has checked it."""
OPEN_WAIT = 5.0
"""Seconds for which opening waits for its turn: LMDB hands out its tables in a writing transaction."""
_SLACK = 4 * MIB
"""Room above a file that is already larger than its limit: without it nothing could be evicted."""
_BROKEN = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.PanicError)
_READERS = 1022


class Unreadable(StoreError):
    """The file is damaged: LMDB cannot read it, or its tree does not hold together."""


class Database:
    """An open environment, shared by the `Store` objects of this process that name its file."""

    def __init__(self, env: lmdb.Environment, home: Path, holders: Holders | None, *, readonly: bool) -> None:
        self.env = env
        self.home = home
        self.holders = holders
        self.readonly = readonly
        self.users = 0
        self.pid = os.getpid()
        self.identity = identity(home)
        with holders.turn(OPEN_WAIT) if holders and not readonly else contextlib.nullcontext():
            self.tables = _open_tables(env, readonly=readonly)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Transaction]:
        """One transaction. Raises `MapFull`, `Unreadable` or `StoreError` with its reason."""
        try:
            with self._turn(write), contextlib.ExitStack() as stack:
                txn = self._enter(stack, write)
                yield Transaction(txn, self.tables)
        except MapFull:
            raise
        except _BROKEN as error:
            raise Unreadable(f"{self.home} is damaged: {error}", reason="unreadable-store") from error
        except lmdb.Error as error:
            raise _explained(error, self.home) from error

    @contextlib.contextmanager
    def _turn(self, write: bool) -> Iterator[None]:
        if not write or self.holders is None:
            yield
            return
        with self.holders.turn():
            if self.replaced():
                raise StoreError(f"{self.home} was replaced by another process meanwhile", reason="replaced")
            yield

    def _enter(self, stack: contextlib.ExitStack, write: bool) -> Any:
        """Begin a transaction behind the gate, and leave both to `stack`."""
        for last in (False, True):
            stack.enter_context(gate.inside())
            stack.enter_context(self._noted())
            try:
                return stack.enter_context(self.env.begin(write=write))
            except lmdb.MapResizedError:
                stack.close()
                if last:
                    raise
            # A process with a larger limit has made the file longer than the map of this one.
            with gate.alone():
                self.env.set_mapsize(0)
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        if self.holders is None:
            yield
            return
        self.holders.enter()
        try:
            yield
        finally:
            self.holders.leave()

    def replaced(self) -> bool:
        """Whether another process has set the file aside or put a compacted one in its place."""
        try:
            return identity(self.home) != self.identity
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the environment, and then leave the slot."""
        self.env.close()
        if self.holders is not None:
            self.holders.close()


_open: dict[tuple[int, int], Database] = {}
_leaked: list[Database] = []
"""Environments that must not be closed here, kept so that nothing closes them."""


def _in_child(inside: int) -> None:
    """Let go of the parent's environments. With no transaction open, closing touches nothing that is the parent's."""
    for database in _open.values():
        if inside:
            _leaked.append(database)
        else:
            database.close()
    _open.clear()


gate = Gate(_in_child)


def acquire(home: Path, limit: int, *, readonly: bool) -> Database:
    """The environment of `home`, opened if this process has not. Caller holds `gate.lock`; `release` takes it back.

    Raises `Unreadable` if the file is damaged, `NewerStore`, or `StoreError`.
    """
    try:
        known = _open.get(identity(home))
    except FileNotFoundError:
        known = None
    if known is None:
        known = _open_checked(home, limit, readonly=readonly)
        _open[known.identity] = known
    elif known.pid != os.getpid():
        raise StoreError(f"{home} is held by the parent of a process that was forked outside Python", reason="fork")
    elif known.readonly and not readonly:
        raise StoreError(f"{home} is open read-only in this process. Close it before opening it to write")
    known.users += 1
    return known


def release(database: Database) -> None:
    """Give an environment back. It closes with its last user in this process."""
    if database.pid != os.getpid():
        return
    with gate.lock:
        database.users -= 1
        if database.users == 0 and _open.get(database.identity) is database:
            del _open[database.identity]
            database.close()


def forget(database: Database) -> None:
    """Open the file anew next time. Other users in this process may still be reading the old one."""
    with gate.lock:
        if _open.get(database.identity) is database:
            del _open[database.identity]
        _leaked.append(database)


def make(directory: Path) -> None:
    """Put an empty database into `directory`."""
    env = _open_lmdb(directory, MIB * 4, readonly=False)
    try:
        tables = _open_tables(env)
        with env.begin(write=True) as txn:
            txn.put(b"format", str(VERSION).encode(), db=tables["meta"])
    finally:
        env.close()
    Holders(directory).close()
    # LMDB leaves holes in the table of readers; a hole that is touched on a full disk ends the process.
    descriptor = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def problems(home: Path) -> list[str]:
    """What is wrong with the tree in `home`, which this process must not have open. Never maps the file."""
    try:
        return [str(problem) for problem in walk(str(home))]
    except (VerifyError, OSError) as error:
        return [str(error)]


def identity(home: Path) -> tuple[int, int]:
    """Device and inode of the file in `home`."""
    facts = os.stat(home / "data.mdb")
    return facts.st_dev, facts.st_ino


def _open_checked(home: Path, limit: int, *, readonly: bool) -> Database:
    holders = env = None
    try:
        holders = _holders(home, readonly=readonly)
        env = _open_lmdb(home, limit, readonly=readonly)
        _check_length(env, home, holders)
        used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if not readonly and used + _SLACK > env.info()["map_size"]:
            env.set_mapsize(used + _SLACK)
        database = Database(env, home, holders, readonly=readonly)
        _check_format(database)
        if not readonly:
            env.reader_check()
        return database
    except BaseException as error:
        if env is not None:
            env.close()
        if holders is not None:
            holders.close()
        if isinstance(error, _BROKEN):
            raise Unreadable(f"{home} cannot be read: {error}", reason="unreadable-store") from error
        if isinstance(error, (lmdb.Error, OSError)):
            raise _explained(error, home) from error
        raise


def _holders(home: Path, *, readonly: bool) -> Holders | None:
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


def _check_length(env: lmdb.Environment, home: Path, holders: Holders | None) -> None:
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


def _check_format(database: Database) -> None:
    with database.transaction() as txn:
        found = int(txn.get("meta", b"format") or VERSION)
    if found > VERSION:
        raise NewerStore(f"{database.home} has format {found}, newer than this kcache reads ({VERSION})")


def _open_lmdb(home: Path, limit: int, *, readonly: bool) -> lmdb.Environment:
    """The environment in `home`, with the largest map up to `limit` that the address space allows."""
    sizes = [limit, *(size for size in (4 * GIB, GIB, 256 * MIB, 64 * MIB) if size < limit)]
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
                max_readers=_READERS,
                max_dbs=len(TABLES) + 7,
                max_spare_txns=0,
            )
        except (lmdb.MemoryError, MemoryError):
            continue
    raise StoreError(f"{home}: no address space for a map of {sizes[-1]} bytes. Raise `ulimit -v`", reason="no-memory")


def _open_tables(env: lmdb.Environment, *, readonly: bool = False) -> dict[str, Any]:
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


_REASONS = (
    (lmdb.ReadersFullError, "readers-full"),
    (lmdb.LockError, "lock"),
    (lmdb.ReadonlyError, "read-only"),
)
_ERRNO = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "quota",
    errno.EFBIG: "file-size-limit",
    errno.EROFS: "read-only",
    errno.EACCES: "not-permitted",
    errno.EPERM: "not-permitted",
    errno.ENOMEM: "no-memory",
}


def _explained(error: lmdb.Error | OSError, home: Path) -> StoreError:
    reason = next((name for kind, name in _REASONS if isinstance(error, kind)), "")
    number = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    reason = reason or _ERRNO.get(number or 0, "") or (_why_short(home) if number == errno.EIO else "")
    return StoreError(f"{home}: {error}" + (f" ({reason})" if reason else ""), reason=reason)


def _why_short(home: Path) -> str:
    """LMDB says "input/output error" where the kernel wrote only a part. The limits tell which one it met."""
    with contextlib.suppress(OSError):
        size, limit = os.stat(home / "data.mdb").st_size, resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and size + GIB // 64 > limit:
            return "file-size-limit"
        facts = os.statvfs(home)
        if facts.f_bavail * facts.f_frsize < 16 * MIB:
            return "disk-full"
    return "input-output"
