"""`kcache.explain()`: why this process missed, what a kernel depends on, what stands under a key.

Asking changes nothing: no count but that of damage met on the way, and no entry.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, overload

from kcache import about, launcher, why
from kcache.closure import fingerprint
from kcache.config import Settings
from kcache.counters import CURRENT as STATS
from kcache.digest import Key
from kcache.errors import StoreError
from kcache.hooks import session
from kcache.store import Store

FLUSH_SECONDS = 10.0


@overload
def explain() -> why.Report: ...
@overload
def explain(of: str | Key) -> about.Entry: ...
@overload
def explain(of: Any) -> about.Kernel: ...
def explain(of: Any = None) -> why.Report | about.Entry | about.Kernel:
    """Why this process missed or bypassed; of a kernel what it depends on; of a key what is stored. All print well.

    Without an argument: the last `kcache.why.REMEMBERED` misses and bypasses, each miss with
    what differs from the nearest stored entry. They stay readable after `disable()`.

    `of` a Triton kernel with its launchers, or any function, class or method of Python:
    everything that it depends on, and the stored entries that hold it as it is now or what
    differs from the nearest one that holds another of its name.

    `of` a key, given as the first digits of it, as torch spells it or as a `kcache.digest.Key`:
    the entry, the parts that its key is made of, and what differs from the nearest other
    entry. Raises `NotFound` if no entry or more than one has such a key, `StoreError` if there
    is no store to look into.

    The store is that of `enable()`, else the one that `KCACHE_DIR` names, opened to read only.
    Raises `TypeError` for anything else. Thread-safe.
    """
    if of is None:
        return why.CURRENT.report()
    if isinstance(of, (str, Key)):
        with _store() as store:
            return about.entry(store, STATS, of if isinstance(of, str) else of.hex)
    if not _is_code(of):
        raise TypeError(f"kcache.explain() takes a kernel, a function, a class or a key, not {of!r}")
    found = fingerprint(of)
    kernel = about.Kernel(found.name, found.digest, found.listing, found.opaque)
    try:
        with _store() as store:
            return about.beside(store, STATS, kernel)
    except StoreError as error:
        return about.Kernel(found.name, found.digest, found.listing, found.opaque, where=str(error))


def _is_code(value: Any) -> bool:
    code = (types.FunctionType, types.MethodType, type)
    return isinstance(value, code) or launcher.is_jit_callable(value) or launcher.inner(value) is not None


@contextmanager
def _store() -> Iterator[Store]:
    """The store in use with all that was put, else the one that the settings name."""
    if session.CURRENT is not None:
        session.CURRENT.cache.flush(FLUSH_SECONDS)
        yield session.CURRENT.cache.store
        return
    settings = Settings.load()
    store = Store.open(settings.dir, max_size=settings.max_size, readonly=True)
    try:
        yield store
    finally:
        store.close()
