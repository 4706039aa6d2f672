"""Layer `tune` for kernels that are launched by hand: timings of their configs, where Triton is asked to keep them.

With `cache_results` or `TRITON_CACHE_AUTOTUNING` Triton keeps the timings of a kernel's configs
in a file, under a key that lacks what a builtin alias or a dtype global points to, the fields
of the autotuner and the model of the GPU. Here the key holds the fingerprint of the whole
launcher and the device. Without that setting Triton measures in every process, and so it
stays.

A kernel that cannot be followed is measured and kept by nobody. Configs with a `pre_hook` go
Triton's way, which is to measure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from kcache import constants
from kcache.closure import fingerprint
from kcache.digest import Key, Part
from kcache.environment import device, settings_part, triton_environment
from kcache.errors import Opaque
from kcache.hooks import session
from kcache.hooks.patch import Patches, require


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where Triton looks otherwise."""
    from triton.runtime import autotuner

    require(autotuner.Autotuner, "check_disk_cache", ("self", "tuning_key", "configs", "bench_fn"))
    check = autotuner.Autotuner.check_disk_cache

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        if not session.caching() or not tuning_key or any(config.pre_hook for config in configs):
            return check(self, tuning_key, configs, bench_fn)  # type: ignore[no-any-return]
        active = session.current()
        try:
            parts = parts_of(self, tuning_key, configs)
        except Opaque as opaque:
            active.bypass("tune", str(opaque))
            bench_fn()
            return False
        except Exception as error:
            active.trouble("tune", "key failed", error)
            bench_fn()
            return False
        if (found := kept(parts, len(configs))) is not None:
            self.configs_timings = dict(zip(configs, found, strict=True))
            self.cache[tuning_key] = min(self.configs_timings, key=self.configs_timings.get)
            return True
        bench_fn()
        keep(parts, [self.configs_timings[config] for config in configs], name=self.base_fn.__name__)
        return False

    patches.replace(autotuner.Autotuner, "check_disk_cache", check_disk_cache)


def parts_of(tuner: Any, tuning_key: Any, configs: Sequence[Any]) -> list[Part]:
    """What the timings of `configs` depend on. Raises `Opaque` where the kernel cannot be followed."""
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver
    from triton.runtime.cache import triton_key

    found = fingerprint(tuner)
    if found.opaque:
        raise found.opaque[0]
    return [
        Part.of("layer", "tune"),
        Part(f"kernel 0 {found.name}", found.digest, found.listing),
        Part.of("tuning key", constants.encode(tuning_key), readable=True),
        Part.of("configs", "\n".join(constants.encode(vars(config)) for config in configs), readable=True),
        settings_part("device", device(), _refuse),
        Part.of("backend", make_backend(driver.active.get_current_target()).hash()),
        Part.of("triton", triton_key()),
        settings_part("triton_environment", triton_environment(), _refuse),
    ]


def kept(parts: Sequence[Part], number: int) -> list[Any] | None:
    """The stored timings, one for each of `number` configs, or None."""
    active, key = session.current(), Key.of(parts)
    try:
        data = active.cache.get("tune", key)
    except Exception as error:
        active.trouble("tune", "lookup failed", error)
        return None
    if data is None:
        active.missed("tune", key, parts)
        return None
    try:
        timings = json.loads(data)["timings"]
        if len(timings) != number:
            raise ValueError(f"{len(timings)} timings of {number} configs")
    except (ValueError, KeyError, TypeError) as error:
        active.spoiled("tune", key, "", "entry does not load", error)
        return None
    return list(timings)


def keep(parts: Sequence[Part], timings: Sequence[Any], *, name: str) -> None:
    """Queue timings for the store: milliseconds, a number or quantiles for each config, infinite where none runs."""
    active = session.current()
    try:
        data = json.dumps({"timings": timings}).encode()
        active.cache.put("tune", Key.of(parts), data, parts=parts, label=name)
    except Exception as error:
        active.trouble("tune", "save failed", error)


def _refuse(value: Any) -> bytes:
    raise Opaque("device", type(value).__name__, "not a plain value")
