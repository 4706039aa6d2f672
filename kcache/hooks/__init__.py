"""`enable()` and `disable()`: the seams to torch and Triton, installed and undone together.

Only modules below this package import torch's internals. Each seam is a file with an
`install(patches)` that first checks that the torch at hand has the expected shape and
raises `ShapeError` if not: that seam stays off, one warning names all that do, and the
program runs.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import threading
from collections.abc import Sequence
from os import PathLike

from kcache import logs
from kcache.config import Settings
from kcache.counters import CURRENT as STATS
from kcache.counters import Snapshot
from kcache.errors import KcacheError, ShapeError, reason_of
from kcache.hooks import session
from kcache.hooks.patch import Patches

logger = logging.getLogger("kcache")

SEAMS = (
    "host", "lift", "aot", "fx", "quarantine", "pool", "extern", "printed", "errors", "kernels", "triton", "timings",
    "variants", "worker", "tune", "cpp", "code", "fresh",
)  # fmt: skip
"""In the order in which they are installed; `disable()` undoes them in the opposite order."""

_NEED_TRITON = ("printed", "errors", "kernels", "triton", "variants", "timings", "worker")
_lock = threading.RLock()
_patches = Patches()


def enable(
    *,
    dir: str | PathLike[str] | None = None,
    max_size: int | str | None = None,
    key_env: Sequence[str] | None = None,
    strict: bool | None = None,
    link: str | None = None,
    jobs: int | None = None,
    signing_key: str | None = None,
    log: str | PathLike[str] | None = None,
) -> bool:
    """Switch kcache on for this process; call it before the first compile.

    Every setting not given comes from `KCACHE_*` in the environment, then from its default.
    Returns whether the cache is on. A store that cannot be used is one warning and False,
    and the program compiles as without kcache; with `strict` it raises `KcacheError`.
    `KCACHE=0` in the environment switches it off whatever the program says: False, silently.
    A second call changes nothing and returns True. Thread-safe.
    """
    given = {
        "dir": dir, "max_size": max_size, "key_env": key_env, "strict": strict, "link": link, "jobs": jobs,
        "signing_key": signing_key, "log": log,
    }  # fmt: skip
    with _lock:
        if session.CURRENT is not None:
            return True
        settings = None
        try:
            settings = Settings.load(**{name: value for name, value in given.items() if value is not None})
            if not settings.enabled:
                return False
            _patches.also(logs.attach(settings.log))
            from kcache.cache import Cache

            cache = Cache.open(settings, STATS)
        except KcacheError as error:
            _patches.undo()
            if strict or (settings is not None and settings.strict):
                raise
            STATS.count("host", "error", reason=f"not enabled: {reason_of(error)}")
            logger.warning("kcache is off: %s", error)
            return False
        session.CURRENT = session.Session(settings, cache, STATS)
        _install()
        atexit.register(_at_exit)
        return True


def _install() -> None:
    refused = []
    for name in SEAMS:
        if name in _NEED_TRITON and importlib.util.find_spec("triton") is None:
            continue
        try:
            importlib.import_module(f"kcache.hooks.{name}").install(_patches)
        except (ShapeError, ImportError) as error:
            STATS.count("host", "error", reason=f"seam {name} off")
            refused.append(f"{name} ({error})")
        except Exception as error:
            session.current().trouble("host", f"seam {name} off", error)
    if refused:
        logger.warning("kcache: this torch or Triton has another shape than expected; off: %s", "; ".join(refused))


def disable() -> None:
    """Put every original of torch and Triton back, write what is queued, and close the store. Idempotent."""
    with _lock:
        _patches.undo()
        active, session.CURRENT = session.CURRENT, None
        if active is not None:
            active.close()
            atexit.unregister(_at_exit)


def _at_exit() -> None:
    if session.CURRENT is not None:
        session.CURRENT.close()


def stats() -> Snapshot:
    """What this process hit, missed, bypassed, stored and saved, per layer; prints well."""
    return STATS.snapshot()
