"""Layer `fx`: Inductor's compiled graphs, with their Triton artifacts stored once each.

Seams, in `torch/_inductor/codecache.py`: the key pickler, the three methods of
`FxGraphCache` that touch files, `_save_graph` (to know guards, cost and the bundled
binaries, which are cut out of the entry and stored under their own digests), and
`prepare_key` and `_check_can_cache`, during which what the key covers counts as cacheable.
"""

from __future__ import annotations

from typing import Any

from kcache.hooks import extern, guarded, lift, refused, session
from kcache.hooks.guarded import Saving
from kcache.hooks.patch import Patches, require


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor import codecache as module

    cache = module.FxGraphCache
    pickler_key = "get_key" if hasattr(module.FxGraphCachePickler, "get_key") else "get_hash"
    require(module.FxGraphCachePickler, pickler_key, ("self", "obj"))
    require(module.FxGraphCachePickler, "debug_lines", ("self", "inp"))
    require(cache, "_save_graph", ("key", "compiled_graph"))
    require(cache, "_check_can_cache", ("gm",))
    require(cache, "prepare_key", ("gm",))
    guarded.install(patches, "fx", cache)

    def methods(base: type) -> dict[str, Any]:
        def get_key(self: Any, obj: Any) -> str:
            if not isinstance(obj, module.FxGraphHashDetails):
                return getattr(base, pickler_key)(self, obj)  # type: ignore[no-any-return]
            key = guarded.make_key("fx", self, obj, module.BypassFxGraphCache)
            return f"f{key}" if pickler_key == "get_key" else key

        return {pickler_key: get_key, "debug_lines": lambda self, inp: []}

    guarded.keyed(module, "FxGraphCachePickler", patches, methods)
    save_graph, check, prepare = cache._save_graph, cache._check_can_cache, cache.prepare_key

    def _save_graph(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> None:
        with guarded.saving(lambda: _saving(compiled_graph)):
            save_graph(key, compiled_graph, *args, **kwargs)

    def _check_can_cache(*args: Any, **kwargs: Any) -> None:
        with lift.lifted():
            check(*args, **kwargs)

    def prepare_key(*args: Any, **kwargs: Any) -> Any:
        before = session.told()
        with lift.lifted():
            found = prepare(*args, **kwargs)
            if found[0] is None and before == session.told():
                refused.note("fx", found[1].get("cache_bypass_reason", ""), args[0] if args else None)
            return found

    patches.replace(cache, "prepare_key", staticmethod(prepare_key))
    patches.replace(cache, "_save_graph", staticmethod(_save_graph))
    patches.replace(cache, "_check_can_cache", staticmethod(_check_can_cache))


def _saving(graph: Any) -> Saving:
    bundle = graph._triton_bundle
    artifacts = [a for kernel in bundle.kernel_artifacts for a in kernel.artifacts] if bundle else []
    pieces = tuple(artifact.payload for artifact in artifacts)
    called = extern.unsaid(graph.source_code)
    why = f"its code calls {called}, which has a name in this process only" if called else ""
    return Saving(graph.guards_expr or "", graph._time_taken_ns or 0, pieces, refused=why)
