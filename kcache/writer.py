"""Writes in the background: gathered, bounded, one transaction for all that arrives together.

Promise: `put` never waits for the disk. What is queued can be read back in this process at
once, and is counted as `stored` only after its commit. A batch is written once nothing has
arrived for `QUIET` seconds, and at the latest when its first entry is `MAX_AGE` seconds old,
so a process that is killed loses about a second of work.

Bounds: at most `limit` bytes wait; past that `put` refuses with the reason `queue-full`.

Threads and fork: one daemon thread, started by the first `put`. A forked child starts with an
empty queue and a thread of its own; what the parent had queued is the parent's to write.

Errors: an exception while writing is counted (`error`, its type as reason) and warned of once;
the thread goes on. In strict mode the next `flush` raises it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence

from .counters import Stats
from .digest import Key
from .draft import Draft
from .errors import reason_of
from .store import Store
from .units import MIB

log = logging.getLogger("kcache")

QUIET = 0.05
MAX_AGE = 1.0
QUEUE_LIMIT = 256 * MIB
MAX_BATCH = 32 * MIB
"""Bytes after which a batch is written without waiting for quiet: the write lock is held for its length."""


class Writer:
    """Queue in front of a store. Every method may be called from any thread and any process."""

    def __init__(self, store: Store, stats: Stats, *, strict: bool = False, limit: int = QUEUE_LIMIT) -> None:
        self._store = store
        self._stats = stats
        self._strict = strict
        self._limit = limit
        self._warned = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._queue: list[Draft] = []
        self._pending: dict[tuple[str, Key], list[Draft]] = {}
        self._touched: dict[bytes, None] = {}
        self._bytes = 0
        self._newest = self._oldest = 0.0
        self._urgent = self._closed = self._busy = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def _here(self) -> threading.Condition:
        """The condition of this process; remade in a forked child."""
        if self._pid != os.getpid():
            self._reset()
            util = sys.modules.get("multiprocessing.util")
            if util is not None:  # its children end without running atexit
                util.Finalize(self, self.drain, exitpriority=10)
        return self._change

    # --- what callers use ---

    def put(self, draft: Draft) -> bool:
        """Queue `draft`. False, and counted as skipped, if too much is waiting already or nothing can be stored."""
        if self._store.readonly:
            self._stats.count(draft.layer, "skipped", reason="read-only")
            return False
        with self._here():
            if self._bytes + draft.size > self._limit:
                self._stats.count(draft.layer, "skipped", reason="queue-full")
                return False
            self._newest = time.monotonic()
            if not self._queue:
                self._oldest = self._newest
            self._queue.append(draft)
            self._pending.setdefault((draft.layer, draft.key), []).append(draft)
            self._bytes += draft.size
            self._start()
            self._change.notify_all()
        return True

    def pending(self, layer: str, key: Key) -> Sequence[Draft]:
        """What is queued under a key and not yet committed, oldest first."""
        if not self._pending:
            return ()  # the common case, without the lock
        with self._here():
            return tuple(self._pending.get((layer, key), ()))

    def touch(self, row: bytes) -> None:
        """Note a use of an index row; written with the next batch or at the end."""
        if self._pid != os.getpid():
            self._here()
        self._touched[row] = None  # atomic, so without the lock: every hit comes here

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until all that is queued now is committed. False if `timeout` seconds were not enough."""
        deadline = time.monotonic() + timeout
        with self._here():
            self._urgent = bool(self._queue)
            self._change.notify_all()
            done = self._change.wait_for(
                lambda: not self._pending or self._thread is None, max(0.0, deadline - time.monotonic())
            )
        while self._queue and self._thread is None:
            self._write_queue()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return done

    def drain(self, timeout: float = 30.0) -> None:
        """Write what is queued and end the thread. Called at exit; a later `put` starts over."""
        with self._here():
            self._closed = True
            self._change.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        if thread is None or not thread.is_alive():
            while self._queue:
                self._write_queue()
            self._write_touches()
        with self._here():
            self._closed, self._thread = False, None

    # --- the thread ---

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._run, name="kcache-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending: `drain` or `flush` writes the queue
            self._thread = None
        else:
            self._thread = thread

    def _run(self) -> None:
        while self._gather():
            self._write_queue()
            self._write_touches()

    def _gather(self) -> bool:
        """Wait for a batch that is due. False when draining and nothing is left."""
        with self._change:
            while not self._queue:
                self._urgent = False
                if self._closed:
                    self._thread = None  # under the lock: a `put` from here on starts another
                    return False
                self._change.wait()
            while not (self._urgent or self._closed or self._bytes >= MAX_BATCH):
                now = time.monotonic()
                due = min(self._newest + QUIET, self._oldest + MAX_AGE)
                if now >= due:
                    break
                self._change.wait(due - now)
            return True

    def _write_queue(self) -> None:
        """Write the front of the queue, up to `MAX_BATCH` bytes."""
        with self._change:
            size = count = 0
            while count < len(self._queue) and size < MAX_BATCH:
                size += self._queue[count].size
                count += 1
            batch, self._queue = self._queue[:count], self._queue[count:]
        if not batch:
            return
        try:
            for draft, reason in zip(batch, self._store.write(batch), strict=True):
                self._stats.count(draft.layer, "skipped" if reason else "stored", reason=reason)
        except Exception as error:
            self.failed(error, batch)
        with self._change:
            for draft in batch:
                name = (draft.layer, draft.key)
                left = [other for other in self._pending.get(name, ()) if other is not draft]
                if left:
                    self._pending[name] = left
                else:
                    self._pending.pop(name, None)
                self._bytes -= draft.size
            self._change.notify_all()

    def _write_touches(self) -> None:
        with self._change:
            touched, self._touched = self._touched, {}
        if not touched or self._store.readonly:
            return
        try:
            self._store.touch(list(touched))
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception, batch: Sequence[Draft] = ()) -> None:
        """Count `error` for each draft of `batch`, or once for the store, and warn."""
        reason = f"write: {reason_of(error)}"
        for layer in [draft.layer for draft in batch] or ["store"]:
            self._stats.count(layer, "error", reason=reason)
        if self._strict:
            self._error = error
        self.warn(f"nothing was stored: {error}")

    def warn(self, text: str) -> None:
        """Warn, once in the life of a cache: what follows from one cause is many errors, and all are counted."""
        if not self._warned:
            self._warned = True
            log.warning("kcache: %s", text)
