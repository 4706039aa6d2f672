"""Layer `aot`: AOTAutograd's results, forward and backward.

Seams, in `torch/_functorch/_aot_autograd/autograd_cache.py`: the key pickler, the three
methods of `AOTAutogradCache` that touch files, `save` (to know the entry's guards and
links), and `try_load`, after which a strict failure is raised that torch would swallow.
"""

from __future__ import annotations

import functools
from typing import Any

from kcache.hooks import guarded, lift, refused, session
from kcache.hooks.guarded import Saving, parse
from kcache.hooks.patch import Patches, require


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._functorch._aot_autograd import autograd_cache as module

    cache = module.AOTAutogradCache
    require(module, "autograd_cache_key")
    require(module.AOTAutogradCachePickler, "get_hash", ("self", "obj"))
    require(cache, "save", ("key", "entry", "remote"))
    require(cache, "try_load")
    guarded.install(patches, "aot", cache)

    def methods(base: type) -> dict[str, Any]:
        def get_hash(self: Any, obj: Any) -> str:
            if not isinstance(obj, module.AOTAutogradCacheDetails):
                return base.get_hash(self, obj)  # type: ignore[attr-defined]
            return guarded.make_key("aot", self, obj, module.BypassAOTAutogradCache)

        return {"get_hash": get_hash, "debug_lines": lambda self, inp: []}

    guarded.keyed(module, "AOTAutogradCachePickler", patches, methods)
    key_of, save, try_load = module.autograd_cache_key, cache.save, cache.try_load

    def autograd_cache_key(*args: Any, **kwargs: Any) -> Any:
        with lift.lifted(), refused.noted("aot", args[0] if args else None):
            return key_of(*args, **kwargs)

    def _save(key: str, entry: Any, remote: bool) -> None:
        with guarded.saving(lambda: _saving(entry)):
            save(key, entry, remote)

    def _try_load(*args: Any, **kwargs: Any) -> Any:
        try:
            return try_load(*args, **kwargs)
        finally:
            session.current().reraise()

    result: Any = getattr(module, "GenericAOTAutogradResult", None)
    if hasattr(result, "wrap_post_compile"):
        wrap = result.wrap_post_compile

        @functools.wraps(wrap)  # other seams ask for its parameters
        def wrap_post_compile(*args: Any, **kwargs: Any) -> Any:
            with refused.noted("aot"):
                return wrap(*args, **kwargs)

        patches.replace(result, "wrap_post_compile", wrap_post_compile)
    patches.replace(module, "autograd_cache_key", autograd_cache_key, by_value=True)
    patches.replace(cache, "save", staticmethod(_save))
    patches.replace(cache, "try_load", staticmethod(_try_load))


def _saving(entry: Any) -> Saving:
    links = []
    for half in (entry.compiled_fw, entry.compiled_bw):
        torch_key, _ = getattr(half, "fx_graph_cache_info", None) or ("", [])
        key = parse(torch_key)
        if key is not None:
            links.append(("fx", key))
    cost = (entry.forward_time_taken_ns or 0) + (entry.backward_time_taken_ns or 0)
    cache = session.current().cache
    graphs = sum(max((c.cost_ns for c in cache.candidates(*link)), default=0) for link in links)
    return Saving(entry.guards_expr or "", max(0, cost - graphs), links=tuple(links))
