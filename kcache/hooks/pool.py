"""The worker pool stays asleep until something has to be compiled.

Torch starts its compile workers as soon as it sees a GPU input, before any lookup. Here
that wish is remembered and granted at the first miss. While an entry that was hit is
being loaded, kernels are loaded in this process: all their artifacts are at hand, so
handing them to a worker would only start one.
"""

from __future__ import annotations

import threading
from typing import Any

from kcache.hooks.patch import Patches, require

_local = threading.local()
_wish: list[Any] = []


def install(patches: Patches) -> None:
    """Install the seams; raises `ShapeError` where torch looks otherwise."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraph

    for owner, name in ((AsyncCompile, "wakeup"), (AsyncCompile, "use_process_pool")):
        require(owner, name, ("cls",))
    require(CompiledFxGraph, "after_deserialization", ("self", "constants"))
    require(FxGraphCache, "load_with_key")
    wakeup, use_pool = AsyncCompile.wakeup, AsyncCompile.use_process_pool
    load, load_with_key, try_load = (
        CompiledFxGraph.after_deserialization,
        FxGraphCache.load_with_key,
        AOTAutogradCache.try_load,
    )

    def _wakeup(cls: Any) -> None:
        _wish[:] = [wakeup]

    def use_process_pool(cls: Any) -> bool:
        if getattr(_local, "loading", False):
            return False
        grant()
        return bool(use_pool())

    def after_deserialization(self: Any, constants: Any) -> Any:
        _local.loading = True
        try:
            return load(self, constants)
        finally:
            _local.loading = False

    def _load_with_key(*args: Any, **kwargs: Any) -> Any:
        found = load_with_key(*args, **kwargs)
        if found[0] is None:
            grant()
        return found

    def _try_load(*args: Any, **kwargs: Any) -> Any:
        found = try_load(*args, **kwargs)
        if (found[0] if isinstance(found, tuple) else found) is None:
            grant()
        return found

    patches.replace(AsyncCompile, "wakeup", classmethod(_wakeup))
    patches.replace(AsyncCompile, "use_process_pool", classmethod(use_process_pool))
    patches.replace(CompiledFxGraph, "after_deserialization", after_deserialization)
    patches.replace(FxGraphCache, "load_with_key", staticmethod(_load_with_key))
    patches.replace(AOTAutogradCache, "try_load", staticmethod(_try_load))


def grant() -> None:
    """Something will be compiled: wake the pool if torch wished for it. Does nothing a second time."""
    while _wish:
        _wish.pop()()
