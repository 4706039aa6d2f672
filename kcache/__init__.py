"""kcache: a content-addressed compile cache under torch.compile that knows your kernels.

::

    import kcache
    kcache.enable()          # before the first compile

The public names load lazily: `import kcache` imports neither torch nor Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "enable": "kcache.hooks",
    "disable": "kcache.hooks",
    "stats": "kcache.hooks",
    "explain": "kcache.hooks.ask",
    "fingerprint": "kcache.closure",
    "Fingerprint": "kcache.closure",
    "KcacheError": "kcache.errors",
    "ConfigError": "kcache.errors",
    "StoreError": "kcache.errors",
    "NotFound": "kcache.errors",
    "Opaque": "kcache.errors",
}

__all__ = [
    "ConfigError",
    "Fingerprint",
    "KcacheError",
    "NotFound",
    "Opaque",
    "StoreError",
    "disable",
    "enable",
    "explain",
    "fingerprint",
    "stats",
]

if TYPE_CHECKING:
    from kcache.closure import Fingerprint, fingerprint
    from kcache.errors import ConfigError, KcacheError, NotFound, Opaque, StoreError
    from kcache.hooks import disable, enable, stats
    from kcache.hooks.ask import explain


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kcache' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
