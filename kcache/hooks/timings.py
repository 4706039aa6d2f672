"""Layer `tune` for kernels that are launched by hand: timings of their configs.

No later process measures again. Triton keeps timings where `cache_results` or
`TRITON_CACHE_AUTOTUNING` asks for it, in a file under a key that lacks what a builtin alias or
a dtype global points to, the fields of the autotuner, constants of the launch and the model of
the GPU. Here they are kept whether asked for or not, and the key holds the fingerprint of the
whole launcher, the specialization that was measured and the device. Within a process the
choice stays Triton's: one for each of its own keys.

A kernel that cannot be followed is measured and kept by nobody. Configs with a `pre_hook` go
Triton's way, which is to measure.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kcache import constants, launcher
from kcache.closure import fingerprint
from kcache.digest import Key, Part
from kcache.environment import device, settings_part, triton_environment
from kcache.errors import Opaque
from kcache.hooks import session
from kcache.hooks.patch import Patches, require

_local = threading.local()

OF_THE_LAUNCH = ("grid", "warmup", "stream", "device")
"""Keywords of a launch that no binary depends on."""


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where Triton looks otherwise."""
    from triton import knobs
    from triton.runtime import autotuner

    require(autotuner.Autotuner, "check_disk_cache", ("self", "tuning_key", "configs", "bench_fn"))
    require(autotuner.Autotuner, "prune_configs", ("self", "kwargs"))
    check, prune = autotuner.Autotuner.check_disk_cache, autotuner.Autotuner.prune_configs

    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        _local.kwargs = kwargs
        return prune(self, kwargs)

    def asked(self: Any) -> bool:
        """Whether Triton asks for timings before it measures. What the program wants stays in the object."""
        return bool(vars(self)["cache_results"] or (session.caching() and not knobs.runtime.interpret))

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        kwargs, _local.kwargs = getattr(_local, "kwargs", {}), {}
        if not session.caching() or not tuning_key or any(config.pre_hook for config in configs):
            return check(self, tuning_key, configs, bench_fn)  # type: ignore[no-any-return]
        active = session.current()
        try:
            parts = parts_of(self, tuning_key, configs, kwargs)
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

    own = property(asked, lambda self, value: vars(self).__setitem__("cache_results", value))
    autotuner.Autotuner.cache_results = own
    patches.also(lambda: delattr(autotuner.Autotuner, "cache_results"))
    patches.replace(autotuner.Autotuner, "prune_configs", prune_configs)
    patches.replace(autotuner.Autotuner, "check_disk_cache", check_disk_cache)


def known(tuner: Any, configs: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the timings of `configs` for this launch are stored. Counts nothing."""
    given = {name: value for name, value in {**tuner.nargs, **kwargs}.items() if name in tuner.arg_names}
    key = [given[name] for name in tuner.keys if name in given]
    key += [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    try:
        return bool(session.current().cache.candidates("tune", Key.of(parts_of(tuner, tuple(key), configs, kwargs))))
    except Opaque:
        return False


def specialization(tuner: Any, kwargs: Mapping[str, Any]) -> str:
    """A line for each argument: what Triton specializes a kernel for. Raises `Opaque` for an unknown constant."""
    constant = {p.name for p in launcher.bottom(tuner).params if p.is_constexpr}

    def said(name: str, value: Any) -> str:
        if hasattr(value, "dtype") and hasattr(value, "data_ptr"):
            return f"{value.dtype}{' aligned' if value.data_ptr() % 16 == 0 else ''}"
        if name in constant or name not in tuner.arg_names or type(value) not in (int, float):
            return constants.encode(value, lambda each: f"function {_followed(each)}")
        if type(value) is int and value != 1:
            return f"int{' of 16' if value % 16 == 0 else ''}{' of 64 bits' if value.bit_length() > 31 else ''}"
        return "one" if type(value) is int else "float"

    given = {**tuner.nargs, **{name: value for name, value in kwargs.items() if name not in OF_THE_LAUNCH}}
    return "\n".join(f"{name}: {said(name, value)}" for name, value in given.items())


def parts_of(tuner: Any, tuning_key: Any, configs: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Part]:
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
        Part.of("specialization", specialization(tuner, kwargs), readable=True),
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


def _followed(value: Any) -> str:
    found = fingerprint(value)
    if found.opaque:
        raise found.opaque[0]
    return found.digest.hex


def _refuse(value: Any) -> bytes:
    raise Opaque("device", type(value).__name__, "not a plain value")
