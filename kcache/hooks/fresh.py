"""Inside torch's `fresh_cache()` a temporary store stands in for the user's.

Also the seam on `torch.library.Library.impl`: functions registered through it live in
C++ only and have to be seen when they are registered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcache import operators
from kcache.cache import Cache
from kcache.hooks import session
from kcache.hooks.patch import Patches, require


def install(patches: Patches) -> None:
    """Install the seams; raises `ShapeError` where torch looks otherwise."""
    import torch
    from torch._inductor import utils

    require(utils, "fresh_cache")
    require(torch.library.Library, "impl", ("self", "op_name", "fn", "dispatch_key"))
    fresh, impl = utils.fresh_cache, torch.library.Library.impl

    @contextlib.contextmanager
    def fresh_cache(*args: Any, **kwargs: Any) -> Iterator[None]:
        with fresh(*args, **kwargs), _temporary(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "kcache"):
            yield

    def _impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **kwargs: Any) -> Any:
        name = op_name if isinstance(op_name, str) else op_name._name
        name = name if "::" in name else f"{self.ns}::{name}"
        operators.LOW_LEVEL[name.removesuffix(".default"), dispatch_key or self.dispatch_key] = fn
        return impl(self, op_name, fn, dispatch_key, *args, **kwargs)

    patches.replace(utils, "fresh_cache", fresh_cache, by_value=True)
    patches.replace(torch.library.Library, "impl", _impl)


@contextlib.contextmanager
def _temporary(directory: Path) -> Iterator[None]:
    active = session.CURRENT
    if active is None:
        yield
        return
    cache = Cache.temporary(directory, active.settings, active.stats)
    try:
        with active.use(cache):
            yield
    finally:
        cache.close()
