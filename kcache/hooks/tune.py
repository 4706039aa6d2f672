"""Layer `tune`: which config of an autotuned kernel won.

Inductor keeps one small JSON file per kernel module, named by the hash of the kernel's
source and torch's, and says nothing of the machine. Here the result is also kept in the
store, under that name and the GPU's model, its number of SMs, the driver and the backend,
so a result never travels to another kind of device. A result found by coordinate descent
replaces the one of plain benchmarking, as in torch.
"""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

from kcache.digest import Key, Part
from kcache.environment import device, settings_part
from kcache.hooks import session
from kcache.hooks.patch import Patches, require

SUFFIX = ".best_config"
DESCENT, PLAIN = "coordinate descent", "benchmark"


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor import remote_cache
    from torch._inductor.runtime import autotune_cache

    backend: Any = getattr(remote_cache, "LocalCacheBackend", None)
    if backend is None:
        backend = autotune_cache._LocalAutotuneCacheBackend
    require(backend, "_get", ("self", "key"))
    require(backend, "_put", ("self", "key", "data"))
    get, put = backend._get, backend._put

    def _get(self: Any, key: str) -> bytes | None:
        if key.endswith(SUFFIX) and session.caching() and (found := best(key)) is not None:
            return found
        return get(self, key)  # type: ignore[no-any-return]

    def _put(self: Any, key: str, data: bytes) -> None:
        if key.endswith(SUFFIX) and session.caching():
            keep(key, data)
        put(self, key, data)

    patches.replace(backend, "_get", _get)
    patches.replace(backend, "_put", _put)


def best(path: str) -> bytes | None:
    """The stored result for the file at `path`, or None."""
    active = session.current()
    try:
        parts = parts_of(path)
        key = Key.of(parts)
        found = {c.guards: c for c in active.cache.candidates("tune", key)}
        chosen = found.get(DESCENT) or found.get(PLAIN)
        active.stats.count("tune", "miss" if chosen is None else "hit")
        if chosen is None:
            active.missed("tune", key, parts)
        data = None if chosen is None else chosen.load()
    except Exception as error:
        active.trouble("tune", "lookup failed", error)
        return None
    if chosen is not None and data is not None:
        try:
            json.loads(data)
        except ValueError as error:
            active.spoiled("tune", key, chosen.guards, "entry does not load", error)
            return None
    return data


def keep(path: str, data: bytes) -> None:
    """Queue a result for the store."""
    active = session.current()
    try:
        descent = json.loads(data).get("found_by_coordesc")
        parts = parts_of(path)
        active.cache.put("tune", Key.of(parts), data, guards=DESCENT if descent else PLAIN, parts=parts)
    except Exception as error:
        active.trouble("tune", "save failed", error)


def parts_of(path: str) -> list[Part]:
    """What a tuning result depends on: torch's name for it, and the device and back end it was measured on."""
    from torch.utils._triton import has_triton, triton_hash_with_backend

    backend = triton_hash_with_backend() if has_triton() else ""
    return [
        Part.of("layer", "tune"),
        Part.of("name", os.path.basename(path).removesuffix(SUFFIX), readable=True),
        settings_part("device", device(), pickle.dumps),
        Part.of("backend", backend),
    ]
