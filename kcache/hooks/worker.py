"""Inductor's compile workers ask the store before they compile a kernel, and store what they compiled.

A worker is another process, where nothing is patched. The task that torch sends it goes
through `compile_triton` here, which opens the store and installs the two seams to Triton's
cache the first time. What a worker hits and misses is not in the program's own counts.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kcache.hooks import errors, session
from kcache.hooks.patch import Patches, require

log = logging.getLogger("kcache")

FLUSH_SECONDS = 5.0

_patches = Patches()


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor import async_compile

    require(async_compile, "_worker_compile_triton", ("load_kernel", "extra_env", "extra_config"))
    given = asdict(session.current().settings)
    task = functools.partial(compile_triton, async_compile._worker_compile_triton, given, errors.KNOWN)
    patches.replace(async_compile, "_worker_compile_triton", task)


def compile_triton(theirs: Callable[..., Any], given: dict[str, Any], known: errors.Known, *task: Any) -> Any:
    """Torch's task for a worker, with the store of the settings `given` under Triton's cache.

    `known` is where linked functions came from, as far as it was known when the task was sent.

    Runs in a worker. A store that cannot be used leaves the task as it is, unless strict.
    """
    active = _session(given)
    errors.KNOWN.update(known)
    try:
        return theirs(*task)
    finally:
        if active is not None:  # a worker is ended without notice
            active.cache.flush(FLUSH_SECONDS)


def _session(given: dict[str, Any]) -> session.Session | None:
    """The session of this worker, made at its first task."""
    if session.CURRENT is None:
        from kcache import logs
        from kcache.cache import Cache
        from kcache.config import Settings
        from kcache.counters import Stats
        from kcache.errors import KcacheError
        from kcache.hooks import kernels, triton

        settings = Settings(**given)
        try:
            logs.attach(settings.log)
            stats = Stats()
            session.CURRENT = session.Session(settings, Cache.open(settings, stats, keep_runs=False), stats)
            kernels.install(_patches)
            triton.install(_patches)
            errors.install(_patches)
        except KcacheError as error:
            if settings.strict:
                raise
            log.warning("kcache is off in this worker: %s", error)
    return session.CURRENT
