"""`KCACHE=1 python train.py`: enables kcache while torch is imported, with no line in the program.

torch imports every entry point of the group `torch.backends` at the end of `import torch`; ours is `autoload`. It
returns at once unless `KCACHE` holds a true value. torch itself skips all of these entry points when
`TORCH_DEVICE_BACKEND_AUTOLOAD=0`.

Promise: `autoload` never raises. An exception here would make `import torch` fail, in every program of the
environment, so what goes wrong is one warning and torch compiles with its own caches. `KCACHE_STRICT=1` changes
nothing about that: a program that wants the exception calls `kcache.enable()` itself.
"""

from __future__ import annotations

import os
import warnings

_TRUE = frozenset({"1", "true", "yes", "on"})


def wanted() -> bool:
    """Whether `KCACHE` asks for kcache: 1, true, yes or on, in any case. Everything else is no."""
    return os.environ.get("KCACHE", "").strip().lower() in _TRUE


def autoload() -> None:
    """Enable kcache when `KCACHE` asks for it; called by torch with no arguments, and never raises."""
    if not wanted():
        return
    try:
        import kcache

        kcache.enable()
    except Exception as error:
        warnings.warn(f"kcache: KCACHE is set, but enabling failed: {error!r}", RuntimeWarning, stacklevel=2)
