"""Who has a store open, who died inside it, and whose turn it is to write: locks on bytes of one small file.

::

    holders    byte 0                the turn: whoever writes holds it
               byte 1                held while slots are looked through
               bytes 64 + 16 n       slot n: state u8, 7 bytes, PID namespace u64; its holder locks its first byte
    state      0 outside, 1 inside a transaction

The locks are POSIX record locks: the kernel frees them when their process ends in any way, a
forked child does not inherit them, and nobody waits for a lock longer than it chooses to. LMDB's
own lock has no such limit, so a writer takes the turn first, and a stopped process costs the
others a bounded wait.

A state is one byte of shared memory that is set on entering a transaction and cleared on
leaving. A slot that nobody locks and that says *inside* belongs to a process that died in
there: by `kill -9`, or because a damaged page ended it. The next process to open the store has
to check the file before it trusts it.

Closing any descriptor of this file drops the locks that this process holds on it, so it is
opened here alone, once for each store and process. Methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import StoreError

NAME = "holders"
TURN_WAIT = 1.0
"""Seconds that a writer waits for its turn; then the write is skipped and counted."""
JOIN_WAIT = 5.0
"""Seconds that whoever opens a store waits for another who has it `alone`; then it goes without."""
_SLOTS = 1024
_HEAD, _SLOT = 64, 16
_SIZE = _HEAD + _SLOTS * _SLOT
_TURN, _SCAN = 0, 1
_INSIDE = 1
_NAMESPACE = struct.Struct("<Q")
_FLOCK = struct.Struct("hhlli0l")
"""The kernel's `struct flock`: type, whence, start, length, pid."""


class Holders:
    """This process's place among those that have one store open."""

    def __init__(self, home: Path) -> None:
        """Open the file in `home`, making it if needed. Raises `OSError` where that is not possible."""
        self._home = home
        self._file = os.open(home / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(self._file).st_size < _SIZE:
                # Its blocks are taken now: touching a hole of a file on a full disk would end the process.
                os.posix_fallocate(self._file, 0, _SIZE)
            self._map = mmap.mmap(self._file, _SIZE)
        except OSError:
            os.close(self._file)
            raise
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._inside = 0
        self._slot, self._state = -1, 0

    def close(self) -> None:
        """Leave the slot. In a forked child only memory and a descriptor of the child's own are given back."""
        self._map.close()
        os.close(self._file)

    # --- the turn ---

    @contextlib.contextmanager
    def turn(self, wait: float = TURN_WAIT) -> Iterator[None]:
        """Hold the turn to write. Raises `StoreError`, reason `busy`, if it does not come within `wait` seconds."""
        deadline = time.monotonic() + wait
        if not self._turn.acquire(timeout=wait):
            raise self._busy(wait)
        try:
            with self._locked(_TURN, deadline, wait):
                yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _locked(self, byte: int, deadline: float, wait: float) -> Iterator[None]:
        pause = 0.0001
        while not self._try(byte):
            if time.monotonic() >= deadline:
                raise self._busy(wait)
            time.sleep(pause)
            pause = min(2 * pause, 0.005)
        try:
            yield
        finally:
            self._free(byte)

    def _try(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def _free(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    def _busy(self, wait: float) -> StoreError:
        return StoreError(f"{self._home}: another process has been writing for {wait:.0f} s", reason="busy")

    # --- slots ---

    def enter(self) -> None:
        """Note that this process is inside a transaction."""
        with self._count:
            self._inside += 1
            if self._inside == 1:
                self._map[self._state] = _INSIDE

    def leave(self) -> None:
        """Note that one thread has left its transaction."""
        with self._count:
            self._inside -= 1
            if not self._inside:
                self._map[self._state] = 0

    def died_inside(self) -> list[int]:
        """Slots whose processes ended inside a transaction."""
        if not any(self._map[_HEAD::_SLOT]):
            return []  # nobody is inside: the usual case, and no lock is needed to see it
        with self._locked(_SCAN, time.monotonic() + JOIN_WAIT, JOIN_WAIT):
            return [slot for slot in range(_SLOTS) if self._map[_HEAD + _SLOT * slot] and self._is_dead(slot)]

    def forgive(self, slots: list[int]) -> None:
        """Clear `slots`: the file was checked and is sound."""
        with self._locked(_SCAN, time.monotonic() + TURN_WAIT, TURN_WAIT):
            for slot in slots:
                if self._is_dead(slot):
                    self._map[_HEAD + _SLOT * slot] = 0

    def join(self) -> None:
        """Take a free slot. Raises `StoreError` if there is none or if another PID namespace has the store open."""
        own = _pid_namespace()
        with self._locked(_SCAN, time.monotonic() + JOIN_WAIT, JOIN_WAIT):
            free = -1
            for slot in range(_SLOTS):
                at = _HEAD + _SLOT * slot
                (namespace,) = _NAMESPACE.unpack_from(self._map, at + 8)
                if not namespace:  # never used, and so are those behind it
                    free = slot if free < 0 else free
                    break
                if not self._is_dead(slot):
                    if namespace != own:
                        raise StoreError(
                            f"{self._home} is in use in another PID namespace, where pids mean other processes. "
                            f"Give each container a KCACHE_DIR of its own",
                            reason="pid-namespace",
                        )
                elif free < 0 and not self._map[at]:
                    free = slot
            if free < 0 or not self._try(_HEAD + _SLOT * free):
                raise StoreError(f"{self._home} is open in {_SLOTS} processes already", reason="readers-full")
            _NAMESPACE.pack_into(self._map, _HEAD + _SLOT * free + 8, own)
            self._slot, self._state = free, _HEAD + _SLOT * free

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other process out of the store until the block ends. Not for one that has joined.

        Raises `StoreError`, reason `in-use`, if any has the store open.
        """
        with self.turn(), self._locked(_SCAN, time.monotonic() + TURN_WAIT, TURN_WAIT):
            pids = [self._locked_by(slot) for slot in range(_SLOTS) if not self._is_dead(slot)]
            if pids:
                named = ", ".join(str(pid) for pid in sorted(pids)[:8]) + (" and others" if len(pids) > 8 else "")
                raise StoreError(
                    f"{self._home} is in use by {len(pids)} other processes ({named}). Try again when they have ended",
                    reason="in-use",
                )
            yield

    def _locked_by(self, slot: int) -> int:
        """Pid of the process that holds `slot`; 0 if it is not one of this PID namespace, or has just left."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _HEAD + _SLOT * slot, 1, 0)
        answer: tuple[int, ...] = _FLOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
        return answer[-1]

    def _is_dead(self, slot: int) -> bool:
        if slot == self._slot or not self._try(_HEAD + _SLOT * slot):
            return False
        self._free(_HEAD + _SLOT * slot)
        return True


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # no /proc: then there is one namespace to know of
        return 1
