"""One LMDB environment per file and process: shared, used in transactions, kept apart over `fork()`.

`store` says what it promises; this module keeps these parts of it:

* a file that is damaged is set aside by the caller (`Unreadable`);
* a process with a larger limit may outgrow another's map; the other then adopts the new size;
* a write takes its turn first, see `holders`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from . import datafile
from .datafile import BROKEN, SLACK, MapFull, Unreadable, explained
from .errors import StoreError
from .gate import Gate
from .holders import Holders
from .place import identity
from .rows import Transaction

OPEN_WAIT = 1.5
"""Seconds for which opening waits for its turn: LMDB hands out its tables in a writing transaction."""


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
            return datafile.open_tables(self.env, readonly=self.readonly)
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
                self.env = datafile.open_lmdb(self.home, size, readonly=self.readonly)
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
        if not isinstance(error, BROKEN):
            raise explained(error, self._held.home) from error
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


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Keep every process out of `home`, this one too. Raises `StoreError`, reason `in-use`, if any has it open."""
    with gate.lock:
        if identity(home) in _open:
            raise StoreError(f"{home} is open in this process. Close it first", reason="in-use")
        with datafile.explaining(home):
            holders = Holders(home)
        try:
            with holders.alone():
                yield
        finally:
            holders.close()


def _open_checked(home: Path, limit: int, *, readonly: bool) -> Database:
    holders = env = None
    try:
        holders = datafile.join(home, readonly=readonly)
        env = datafile.open_lmdb(home, limit, readonly=readonly)
        datafile.check_length(env, home, holders)
        used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if not readonly and used + SLACK > env.info()["map_size"]:
            env.set_mapsize(used + SLACK)
        database = Database(env, home, holders, readonly=readonly)
        with database.transaction() as txn:
            datafile.check_format(txn, home)
        if not readonly:
            env.reader_check()
        return database
    except BaseException as error:
        if env is not None:
            env.close()
        broken = isinstance(error, BROKEN) or (env is None and datafile.unsound(error, home, holders))
        if holders is not None:
            holders.close()
        if broken:
            raise Unreadable(f"{home} cannot be read: {error}", reason="unreadable-store") from error
        if isinstance(error, (lmdb.Error, OSError)):
            raise explained(error, home) from error
        raise
