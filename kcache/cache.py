"""The cache as the seams see it: look up by layer and key, store in the background. Start reading here.

Promise: what `get` and `Candidate.load` return is, byte for byte, what was put under that
layer, key and guards, by this process or another. Anything else is a miss with a counted
reason, and the entry is dropped.

It never breaks its caller: an error becomes a counted reason and one warning, unless
`settings.strict`, when it is raised (one from the background writer by the next `flush`).
Every method may be called from any thread, and in a forked child.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from .config import Settings
from .counters import CURRENT, Stats
from .digest import Key, Part
from .draft import Draft
from .entry import Record
from .errors import Damaged, KcacheError, StoreError, reason_of
from .rows import index_row, variant_id
from .store import Store
from .writer import Writer

_T = TypeVar("_T")

__all__ = ["Cache", "Candidate"]

log = logging.getLogger("kcache")


class _Removed(Damaged):
    """The variant was evicted or purged between looking it up and reading it: a miss, and no damage."""


@dataclass(frozen=True)
class Candidate:
    """One variant of an entry: what is known of it before its value is read."""

    layer: str
    key: Key
    guards: str
    label: str
    cost_ns: int
    created_ns: int
    size: int
    links: tuple[tuple[str, Key], ...]
    _load: Callable[[], bytes]

    def load(self) -> bytes:
        """The value, verified. Raises `Damaged`, after the variant has been dropped and counted; `StoreError` if
        the store cannot be read."""
        return self._load()


class Cache:
    """A store, its background writer and the counts of the process."""

    def __init__(self, store: Store, settings: Settings, stats: Stats, *, keep_runs: bool = True) -> None:
        self.store = store
        self.settings = settings
        self.stats = stats
        self._writer = Writer(store, stats, strict=settings.strict)
        self._keep_runs = keep_runs
        self._started_ns = time.time_ns()
        self._closed = False
        atexit.register(self._at_exit)

    @classmethod
    def open(cls, settings: Settings, stats: Stats = CURRENT, *, keep_runs: bool = True) -> Cache:
        """Open the store that `settings` names. One that cannot be written, or in which a stopped process holds the
        turn to write, is opened to read, which is one warning and counted.

        Raises `StoreError` if it may not be used.
        """
        given: dict[str, Any] = {"max_size": settings.max_size, "stats": stats, "signing_key": settings.signing_key}
        try:
            store = Store.open(settings.dir, **given)
        except StoreError as error:
            if error.reason not in ("read-only", "busy") or settings.strict:
                raise
            store = Store.open(settings.dir, readonly=True, **given)
            stats.count("store", "skipped", reason=error.reason)
            log.warning("kcache: %s; nothing will be stored", error)
        return cls(store, settings, stats, keep_runs=keep_runs)

    @classmethod
    def temporary(cls, directory: Path | str, settings: Settings, stats: Stats = CURRENT) -> Cache:
        """A cache of its own in `directory`, with the other settings as given. It records no run."""
        settings = replace(settings, dir=Path(directory))
        return cls.open(settings, stats, keep_runs=False)

    # --- looking up ---

    def candidates(self, layer: str, key: Key) -> list[Candidate]:
        """All variants of an entry, those still queued in this process included. Counts neither hit nor miss."""
        found = [self._queued(draft) for draft in self._writer.pending(layer, key)]
        known = {candidate.guards for candidate in found}
        none: list[tuple[bytes, Record]] = []
        rows = self._guard(layer, lambda: self.store.variants(layer, key), none)
        stored = [self._kept(layer, key, variant, record) for variant, record in rows]
        return [candidate for candidate in stored if candidate.guards not in known] + found

    def get(self, layer: str, key: Key) -> bytes | None:
        """The value of the first variant that loads, counted as a hit; None, counted as a miss, if none does."""
        if not self._writer.pending(layer, key):
            found = None
            try:
                found = self.store.plain(layer, key)
            except (KcacheError, OSError) as error:
                self._failed(layer, error)
            if found is not None:
                row, record, value = found
                self._writer.touch(row)
                self.stats.hit(layer, record.cost_ns)
                return value
        reason = "absent"
        for candidate in self.candidates(layer, key):
            try:
                value = candidate.load()
            except _Removed:
                reason = "removed meanwhile"
                continue
            except Damaged as damage:
                if self.settings.strict:
                    raise
                reason = f"{damage.outcome}: {damage.reason}"
                continue
            except KcacheError as error:
                self._failed(layer, error)
                reason = "error"
                continue
            self.stats.hit(layer, candidate.cost_ns)
            return value
        self.stats.count(layer, "miss", reason=reason)
        return None

    def parts(self, layer: str, key: Key) -> list[Part]:
        """The part list that was put with an entry, or nothing."""
        for draft in self._writer.pending(layer, key):
            if draft.parts:
                return list(draft.parts)
        try:
            return self._guard(layer, lambda: self.store.parts(layer, key), [])
        except Damaged as damage:
            self.stats.count(layer, "damaged", reason=f"parts: {damage.reason}")
            if self.settings.strict:
                raise
            return []

    # --- storing ---

    def put(
        self,
        layer: str,
        key: Key,
        value: bytes,
        *,
        guards: str = "",
        parts: Sequence[Part] = (),
        links: Sequence[tuple[str, Key]] = (),
        label: str = "",
        cost_ns: int = 0,
        pieces: Sequence[bytes] = (),
    ) -> bool:
        """Queue an entry. True if it was queued; it counts as stored after its commit.

        The first writer of a layer, key and guards wins. `links` are the entries that this one
        names: they are kept and removed together. `parts` are what the key was made of, and texts
        beside it (`kcache.listing`), for people to read and for explaining misses. `pieces` are
        byte strings inside `value` that other entries may share. `label` is searched by `kcache purge --kernel`.
        """
        return self._writer.put(
            Draft(
                layer=layer,
                key=key,
                value=bytes(value),
                guards=guards,
                parts=tuple(parts),
                links=tuple(links),
                label=label,
                cost_ns=max(0, int(cost_ns)),
                pieces=tuple(pieces),
                created_ns=time.time_ns(),
            )
        )

    def discard(self, layer: str, key: Key, guards: str = "") -> None:
        """Remove a variant that loads and is of no use, so that what is put next takes its place."""
        if self._writer.pending(layer, key):
            self.flush()
        if not self.store.readonly:
            self._guard(layer, lambda: self.store.drop(layer, key, variant_id(guards)), None)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until all that was put is committed. False if `timeout` seconds were not enough."""
        return self._writer.flush(timeout)

    def clear(self, layer: str) -> int:
        """Remove every entry of `layer`, those still queued included; returns how many were stored."""
        self.flush()
        return self._guard(layer, lambda: self.store.delete([stored.id for stored in self.store.scan(layer)]), 0)

    def close(self) -> None:
        """Write what is queued, record the run, let go of the store."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._finish()
        self.store.close()

    # --- inside ---

    def _queued(self, draft: Draft) -> Candidate:
        return Candidate(
            draft.layer,
            draft.key,
            draft.guards,
            draft.label,
            draft.cost_ns,
            draft.created_ns,
            len(draft.value),
            tuple(draft.links),
            lambda: draft.value,
        )

    def _kept(self, layer: str, key: Key, variant: bytes, record: Record) -> Candidate:
        def load() -> bytes:
            row = index_row(layer, key, variant)
            try:
                value = self.store.read(record)
            except Damaged as damage:
                if self.store.fetch("index", row) is None:
                    raise _Removed(damage.reason, "removed meanwhile") from damage
                self.stats.count(layer, damage.outcome, reason=damage.reason)
                if not self.store.readonly:
                    self._guard(layer, lambda: self.store.drop(layer, key, variant, record), None)
                raise
            self._writer.touch(row)
            return value

        return Candidate(
            layer,
            key,
            record.guards,
            record.label,
            record.cost_ns,
            record.created_ns,
            record.raw_size,
            record.links,
            load,
        )

    def _guard(self, layer: str, action: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return action()
        except Damaged:
            raise
        except (KcacheError, OSError) as error:
            self._failed(layer, error)
            return otherwise

    def _failed(self, layer: str, error: Exception) -> None:
        self.stats.count(layer, "error", reason=f"read: {reason_of(error)}")
        if self.settings.strict:
            raise error
        self._writer.warn(f"{error}; compiling without it")

    def _finish(self) -> None:
        self._writer.drain()
        run = self.stats.take() if self._keep_runs and not self.store.readonly else None
        if run is None or not run.layers:
            return
        facts: dict[str, Any] = {
            "program": os.path.basename(sys.argv[0]) if sys.argv else "",
            "pid": os.getpid(),
            "started_ns": self._started_ns,
            "ended_ns": time.time_ns(),
        }
        try:
            self.store.add_run({**facts, **run.to_dict()})
        except (KcacheError, OSError) as error:
            self._writer.failed(error)
            if self.settings.strict:
                raise

    def _at_exit(self) -> None:
        try:
            self.close()
        except Exception as error:  # the program is over; all that is left is to say so
            log.warning("kcache: at exit: %s", error)
