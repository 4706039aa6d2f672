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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
from lmdb.verify import VerifyError
from lmdb.verify import verify as walk

from .entry import VERSION
from .errors import REASON_OF_ERRNO, NewerStore, StoreError
from .gate import Gate
from .holders import Holders
from .place import identity
from .rows import LATER, TABLES, Transaction
from .units import GIB, MIB

MapFull = lmdb.MapFullError
"""Raised by a transaction for which the file has no room; the store evicts and tries again."""
CHECK_WAIT = 5.0
"""Seconds for which whoever opens a suspect store waits until another process has checked it."""
OPEN_WAIT = 1.5
"""Seconds for which opening waits for its turn: LMDB hands out its tables in a writing transaction."""
_SLACK = 4 * MIB
"""Room above a file that is already larger than its limit: without it nothing could be evicted."""
_BROKEN = (
    *(lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError),
    # kcache gives no cause for these, so they speak of the file: a name of no bytes, a tree without end, a table that
    # became another, a transaction in which LMDB met something that it did not report.
    *(lmdb.BadValsizeError, lmdb.CursorFullError, lmdb.PageFullError, lmdb.IncompatibleError, lmdb.BadDbiError),
    lmdb.BadTxnError,
)
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
        with self._turn_to_open():
            self.tables = self._open_tables()

    def transaction(self, *, write: bool = False, broken: Callable[[Database], None] | None = None) -> _Inside:
        """A context of one transaction. Raises `MapFull`, `Unreadable` after `broken`, else `StoreError`."""
        return _Inside(self, write, broken)

    def _turn_to_open(self) -> contextlib.AbstractContextManager[None]:
        return self.holders.turn(OPEN_WAIT) if self.holders and not self.readonly else contextlib.nullcontext()

    def _open_tables(self) -> dict[str, Any]:
        """Handles of all tables, made if missing. Noted as a transaction, since it may be what a damaged page ends."""
        if self.holders is not None:
            self.holders.enter()
        try:
            return _open_tables(self.env, readonly=self.readonly)
        finally:
            if self.holders is not None:
                self.holders.leave()

    def revive(self) -> None:
        """Open the environment anew if LMDB has given it up, as it does where it could not write a meta page.

        That is a state of this process alone: the file has its last commit, and other processes go on with it.
        """
        with self._turn_to_open(), gate.alone():
            try:
                self.env.begin().abort()
            except lmdb.PanicError:
                size = self.env.info()["map_size"]
                self.env.close()
                self.env = _open_lmdb(self.home, size, readonly=self.readonly)
                self.tables = self._open_tables()

    def replaced(self) -> bool:
        """Whether another process has set the file aside or put a compacted one in its place."""
        return identity(self.home) != self.identity

    def close(self) -> None:
        """Close the environment, and then leave the slot."""
        self.env.close()
        if self.holders is not None:
            self.holders.close()


class _Inside:
    """One transaction: it takes its turn if it writes, passes the gate, and is noted among the holders.

    A class and no generator, since every lookup enters one: generators took 9 of the 20 microseconds that a lookup may.
    """

    __slots__ = ("_broken", "_held", "_turn", "_txn", "_write")

    def __init__(self, held: Database, write: bool, broken: Callable[[Database], None] | None) -> None:
        self._held = held
        self._write = write
        self._broken = broken
        self._turn: contextlib.AbstractContextManager[None] | None = None

    def __enter__(self) -> Transaction:
        held = self._held
        try:
            if self._write:
                self._take_turn()
            try:
                self._txn = self._begin()
            except lmdb.MapResizedError:
                # A process with a larger limit has made the file longer than the map of this one.
                with gate.alone():
                    held.env.set_mapsize(0)
                self._txn = self._begin()
        except BaseException as error:
            self._end_turn()
            self._explain(error)
            raise
        return Transaction(self._txn, held.tables)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._txn.__exit__(kind, error, trace)
        except lmdb.Error as refused:
            error = refused
        finally:
            self._leave()
            if self._turn is not None:
                self._end_turn()
        if error is not None:
            if kind is None and not isinstance(error, MapFull):
                self._held.revive()
            self._explain(error)
            if kind is None:
                raise error

    def _take_turn(self) -> None:
        held = self._held
        if held.holders is None:
            return
        turn = held.holders.turn()
        turn.__enter__()
        self._turn = turn
        if held.replaced():
            raise StoreError(f"{held.home} was replaced by another process meanwhile", reason="replaced")

    def _begin(self) -> Any:
        held = self._held
        gate.enter()
        if held.holders is not None:
            held.holders.enter()
        try:
            return held.env.begin(write=self._write)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._held.holders is not None:
            self._held.holders.leave()
        gate.leave()

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.__exit__(None, None, None)

    def _explain(self, error: BaseException) -> None:
        """Raise what callers know in place of LMDB's own errors; return for any other."""
        if isinstance(error, MapFull) or not isinstance(error, lmdb.Error):
            return
        if not isinstance(error, _BROKEN):
            raise _explained(error, self._held.home) from error
        if self._broken is not None:
            self._broken(self._held)
        aside = "; it was set aside" if self._broken is not None else ""
        raise Unreadable(f"{self._held.home} is damaged: {error}{aside}", reason="unreadable-store") from error


_open: dict[tuple[int, int] | None, Database] = {}
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
    here = identity(home)
    known = _open.get(here) if here else None
    if known is None:
        if any(left.pid != os.getpid() and left.identity == here for left in _leaked):
            raise StoreError(f"{home} was in use in the parent at the moment of the fork", reason="fork")
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
    """Put an empty database into `directory`. Raises `StoreError` or `OSError`."""
    env = None
    try:
        env = _open_lmdb(directory, MIB * 4, readonly=False)
        tables = _open_tables(env)
        with env.begin(write=True) as txn:
            txn.put(b"format", str(VERSION).encode(), db=tables["meta"])
    except lmdb.Error as error:
        raise _explained(error, directory) from error
    finally:
        if env is not None:
            env.close()
    Holders(directory).close()
    # LMDB leaves holes in the table of readers; a hole that is touched on a full disk ends the process.
    descriptor = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Keep every process out of `home`, this one too. Raises `StoreError`, reason `in-use`, if any has it open."""
    with gate.lock:
        if identity(home) in _open:
            raise StoreError(f"{home} is open in this process. Close it first", reason="in-use")
        try:
            holders = Holders(home)
        except OSError as error:
            raise _explained(error, home) from error
        try:
            with holders.alone():
                yield
        finally:
            holders.close()


def survey(home: Path) -> tuple[dict[str, int], int]:
    """The rows of each table in `home` and the bytes in use. Caller is `alone`, and has looked for `problems`."""
    env = _open_lmdb(home, _SLACK, readonly=True)
    try:
        _check_length(env, home, None)
        tables = _open_tables(env, readonly=True)
        with env.begin() as inner:
            txn = Transaction(inner, tables)
            _check_format(txn, home)
            return {name: txn.entries(name) for name in tables}, txn.live_bytes()
    except lmdb.Error as error:
        raise _explained(error, home) from error
    finally:
        env.close()


def copy(home: Path, target: Path) -> None:
    """Put into the empty directory `target` what is in use in `home`. Caller is `alone`, as above."""
    env = _open_lmdb(home, _SLACK, readonly=True)
    try:
        env.copy(os.fsencode(target), compact=True)  # type: ignore[arg-type]
    except (lmdb.Error, OSError) as error:
        raise _explained(error, target) from error
    finally:
        env.close()


def problems(home: Path) -> list[str]:
    """What is wrong with the tree in `home`, which this process must not have open. Never maps the file."""
    try:
        return [str(problem) for problem in walk(str(home))]
    except (VerifyError, OSError) as error:
        return [str(error)]


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
        with database.transaction() as txn:
            _check_format(txn, home)
        if not readonly:
            env.reader_check()
        return database
    except BaseException as error:
        if env is not None:
            env.close()
        broken = isinstance(error, _BROKEN) or (env is None and _refused_by_binding(error) and _unsound(home, holders))
        if holders is not None:
            holders.close()
        if broken:
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


def _refused_by_binding(error: BaseException) -> bool:
    """Whether py-lmdb itself would not open the file: for a version that LMDB never had it has no error of its own."""
    return type(error) is lmdb.Error and not error.code


def _unsound(home: Path, holders: Holders | None) -> bool:
    with holders.turn() if holders else contextlib.nullcontext():
        return bool(problems(home))


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


def _check_format(txn: Transaction, home: Path) -> None:
    data = txn.get("meta", b"format")
    if data is None:
        return
    if not data.isdigit():
        raise lmdb.CorruptedError(f"its format is given as {data[:20]!r}")
    found = int(data)
    if found > VERSION:
        raise NewerStore(f"{home} has format {found}, newer than this kcache reads ({VERSION})")


def _open_lmdb(home: Path, limit: int, *, readonly: bool) -> lmdb.Environment:
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


_SHORT = (errno.EIO, errno.EINVAL)
"""What LMDB says where the kernel wrote only a part: the second of a copy, whose rest is then not aligned."""


def _explained(error: lmdb.Error | OSError, home: Path) -> StoreError:
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
