"""What is switched on: the settings, the store in use, and how a seam reports trouble.

One `Session` exists between `enable()` and `disable()`. Seams ask it for the current
cache (another one inside torch's `fresh_cache()`), and hand it every exception of
kcache's own: it is counted with its reason, the first is a warning, and under
`KCACHE_STRICT` raised again at the next point where torch does not swallow it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Sequence

from kcache import why
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.digest import Key, Part

log = logging.getLogger("kcache")


class Session:
    """State shared by all seams. Thread-safe; `cache` differs per `fresh_cache()` nesting of the process."""

    def __init__(self, settings: Settings, cache: Cache, stats: Stats) -> None:
        self.settings = settings
        self.stats = stats
        self._caches = [cache]
        self._warned = False
        self._pending: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def cache(self) -> Cache:
        """The cache that lookups and saves go to now."""
        return self._caches[-1]

    @contextlib.contextmanager
    def use(self, cache: Cache) -> Iterator[None]:
        """Let `cache` stand in for the store until the block ends (torch's `fresh_cache()`)."""
        self._caches.append(cache)
        try:
            yield
        finally:
            self._caches.remove(cache)

    def trouble(self, layer: str, reason: str, error: BaseException) -> None:
        """Count `error` under `reason`, warn if it is the first, and keep it for `reraise` when strict."""
        self.stats.count(layer, "error", reason=reason)
        _tell()
        with self._lock:
            first, self._warned = not self._warned, True
            if self.settings.strict and self._pending is None:
                self._pending = error
        level = logging.WARNING if first else logging.INFO
        log.log(level, "kcache: %s: %s: %s; compiling without it", layer, reason, error)
        log.debug("kcache: %s: %s", layer, reason, exc_info=error)

    def spoiled(self, layer: str, key: Key, guards: str, reason: str, error: BaseException) -> None:
        """An entry is whole and of no use: count that as `trouble` does, and remove it."""
        self.trouble(layer, reason, error)
        try:
            self.cache.discard(layer, key, guards)
        except Exception as refused:
            self.trouble(layer, "entry cannot be removed", refused)

    def bypass(self, layer: str, reason: str) -> None:
        """Count a bypass and say why, one line each."""
        self.stats.count(layer, "bypass", reason=reason)
        _tell()
        self._note(why.Explained(layer, "bypass", reason=reason))

    def unstored(self, layer: str, reason: str) -> None:
        """Count what was compiled and is not kept, and say why: the next run will miss it."""
        self.stats.count(layer, "skipped", reason=reason)
        self._note(why.Explained(layer, "not stored", reason=reason))

    def missed(self, layer: str, key: Key, parts: Sequence[Part], label: str = "") -> None:
        """Say why `key`, which `parts` describe, missed: one line in the log, the whole of it in `kcache.explain()`."""
        try:
            self._note(why.nearest(self.cache.store, self.stats, layer, key, parts, label))
        except Exception as error:
            self.trouble(layer, "no explanation", error)

    def _note(self, explained: why.Explained) -> None:
        why.CURRENT.add(explained)
        log.info("kcache: %s", explained.line)

    def reraise(self) -> None:
        """Raise what `trouble` kept, when strict; called where torch lets exceptions through."""
        with self._lock:
            error, self._pending = self._pending, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Drain and close every cache in use."""
        for cache in reversed(self._caches):
            cache.close()


CURRENT: Session | None = None
"""The session between `enable()` and `disable()`, else None."""


_local = threading.local()


def told() -> int:
    """How many bypasses and exceptions this thread has reported; tells whether what torch gives up on is known."""
    return getattr(_local, "told", 0)


def _tell() -> None:
    _local.told = told() + 1


def caching() -> bool:
    """Whether torch's own main switch, `torch.compiler.config.force_disable_caches`, leaves caches on."""
    config = sys.modules.get("torch.compiler.config")
    return not (config is not None and config.force_disable_caches)


def current() -> Session:
    """The session in force; seams run only while there is one."""
    if CURRENT is None:
        raise RuntimeError("kcache is not enabled")
    return CURRENT
