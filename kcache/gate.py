"""A gate that `fork()` closes: no transaction is open in this process while it forks.

A child that inherits an open LMDB transaction shares memory with it, and can neither end it
nor close the environment that it belongs to. So `fork()` waits until whoever is inside has
left, and keeps others out until it is done. Transactions are short, so the wait is too; after
`FORK_WAIT` seconds `fork()` goes on, and the child is told how many were still inside.

Holds for forks made through Python (`os.fork`, `multiprocessing`). A fork made in C runs no
hooks; the store then notices a changed pid and refuses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FORK_WAIT = 5.0


class Gate:
    """Counts who is inside. `lock` is held over a fork, so what it guards is whole in the child."""

    def __init__(self, in_child: Callable[[int], None]) -> None:
        """`in_child` runs in every forked child, with the number that was inside at the fork."""
        self.lock = threading.RLock()
        self._in_child = in_child
        self._count = threading.Lock()
        self._change = threading.Condition(self._count)
        self._inside = 0
        self._closed = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_parent=self._parent, after_in_child=self._child)

    def enter(self) -> None:
        """Wait for a fork or an `alone` that is under way, then hold off the next one until `leave`."""
        with self._count:
            while self._closed:
                self._change.wait()
            self._inside += 1

    def leave(self) -> None:
        """Undo one `enter`, in the process that made it."""
        with self._count:
            self._inside -= 1
            if self._closed:
                self._change.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody is inside, and keep others out until the block ends. Not from inside."""
        with self._change:
            self._change.wait_for(lambda: not self._closed)
            self._closed = True
            self._change.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            self._open()

    def _before(self) -> None:
        self.lock.acquire()
        with self._change:
            self._change.wait_for(lambda: not self._closed, timeout=FORK_WAIT)
            self._closed = True
            self._change.wait_for(lambda: self._inside == 0, timeout=FORK_WAIT)

    def _open(self) -> None:
        with self._change:
            self._closed = False
            self._change.notify_all()

    def _parent(self) -> None:
        self._open()
        self.lock.release()

    def _child(self) -> None:
        inside = self._inside
        self.lock, self._count = threading.RLock(), threading.Lock()
        self._change = threading.Condition(self._count)
        self._inside, self._closed = 0, False
        self._in_child(inside)
