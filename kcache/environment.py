"""Ingredients of a key that are not in the program: versions, settings, machine.

Torch's own details objects hold most of them; `of_details` takes every attribute they
have, so an ingredient that a release adds cannot get lost. `holes` adds what they lack:
process-wide switches that change generated code and stand in no key of torch's.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from kcache import listing
from kcache.digest import Digest, Part
from kcache.listing import plain, shown

Leaf = Callable[[Any], bytes]


def stable(value: Any, leaf: Leaf) -> bytes:
    """Bytes for `value` that do not depend on dict or set order; leaves are encoded by `leaf`.

    Containers are framed by type and length, so no two values share an encoding.
    """
    if isinstance(value, Mapping):
        body = sorted(_frame(stable(k, leaf)) + _frame(stable(v, leaf)) for k, v in value.items())
        return b"d" + b"".join(body)
    if isinstance(value, (set, frozenset)) or type(value).__name__ == "OrderedSet":
        return b"s" + b"".join(sorted(_frame(stable(v, leaf)) for v in value))
    if type(value) in (list, tuple):
        return type(value).__name__[:1].encode() + b"".join(_frame(stable(v, leaf)) for v in value)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return b"v" + f"{type(value).__name__}:{value!r}".encode()
    return b"p" + leaf(value)


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def of_details(details: Any, leaf: Leaf, replaced: Iterable[str]) -> list[Part]:
    """One part per attribute of torch's details object, but for those in `replaced`.

    Settings (dictionaries with text keys) become readable, a line per setting, so that a
    miss can name the one that differs; so do plain values.
    """
    skip = frozenset(replaced)
    found = []
    for name, value in sorted(vars(details).items()):
        if name in skip:
            continue
        if isinstance(value, Mapping) and value and all(isinstance(k, str) for k in value):
            found.append(settings_part(name, value, leaf))
        else:
            text = shown(value).encode() if plain(value) else b""
            found.append(Part(name, Digest.of(stable(value, leaf)), text))
    return found


def settings_part(name: str, settings: Mapping[str, Any], leaf: Leaf) -> Part:
    """A readable part with a line for each setting (`kcache.listing`)."""
    rows = [(key, Digest.of(stable(value, leaf)), shown(value)) for key, value in sorted(settings.items())]
    return Part.of(name, listing.settings(rows), readable=True)


OPERATIONS = tuple(
    (backend, operation)
    for backend, operations in (
        ("generic", ("all",)),
        ("cuda", ("all", "matmul", "conv", "rnn")),
        ("mkldnn", ("all", "matmul", "conv", "rnn")),
    )
    for operation in operations
)
"""Pairs for which torch keeps a float32 precision."""

OTHER_SDP = ("_get_sdp_priority_order", "_get_overrideable_sdp_enabled", "_get_fa3_sdp_enabled")
"""Switches of scaled dot-product attention that have no public getter in every release."""

SWITCHES: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("default_dtype", torch.get_default_dtype),
    ("precisions", lambda: _precisions()),
    ("matmul_precision", lambda: _answered(torch.get_float32_matmul_precision)),
    ("flash_sdp", torch.backends.cuda.flash_sdp_enabled),
    ("mem_efficient_sdp", torch.backends.cuda.mem_efficient_sdp_enabled),
    ("math_sdp", torch.backends.cuda.math_sdp_enabled),
    ("cudnn_sdp", torch.backends.cuda.cudnn_sdp_enabled),
    ("reduced_math_sdp", torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed),
    ("other_sdp", lambda: {name: _getter(name) for name in OTHER_SDP}),
    ("sm_carveout", lambda: _getter("_get_sm_carveout_experimental")),
    ("cudnn_tf32", lambda: _answered(torch._C._get_cudnn_allow_tf32)),
    ("onednn_tf32", lambda: _answered(torch._C._get_onednn_allow_tf32)),
    ("mkldnn", lambda: (torch.backends.mkldnn.enabled, torch.backends.mkldnn.deterministic)),
    ("mkldnn_available", torch.backends.mkldnn.is_available),
    (
        "cudnn",
        lambda: (
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ),
    ),
    ("opt_einsum", lambda: (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy)),
    ("nnpack", lambda: torch._C._get_nnpack_enabled() if hasattr(torch._C, "_get_nnpack_enabled") else None),
    ("quantized_engine", lambda: torch.backends.quantized.engine),
    ("denormals", lambda: _multiply(5e-324, 1.0) == 0.0),
    ("threads", lambda: _threads()),
    ("cpu_capability", torch.backends.cpu.get_cpu_capability),
    ("cpu_isa", lambda: _cpu_isa()),
    ("shape_config", lambda: _experimental_config()),
)
"""Process-wide state that changes what is compiled and that torch's own keys leave out (all or some versions)."""


def holes(key_env: Iterable[str], leaf: Leaf) -> list[Part]:
    """Parts for the global switches, the CPU, the GPU and the environment variables that compile."""
    switches = {name: read() for name, read in SWITCHES}
    return [
        settings_part("switches", switches, leaf),
        settings_part("triton_environment", triton_environment(), leaf),
        settings_part("device", device(), leaf),
        settings_part("user_environment", chosen(key_env), leaf),
    ]


def chosen(patterns: Iterable[str]) -> dict[str, str]:
    """Environment variables that match one of the user's `key_env` patterns (`MY_*`)."""
    return {k: v for k, v in os.environ.items() if any(fnmatch.fnmatchcase(k, p) for p in patterns)}


def device() -> dict[str, Any]:
    """What distinguishes one GPU from another for tuning and code: model, SMs, capability, driver."""
    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": found.name,
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "warp_size": getattr(found, "warp_size", None),
        "arch": getattr(found, "gcnArchName", None),
        "driver": torch._C._cuda_getDriverVersion() if hasattr(torch._C, "_cuda_getDriverVersion") else None,
    }


def triton_environment() -> dict[str, str]:
    """Variables that Triton declares to invalidate its cache, and those that it reads without declaring them."""
    names = {"PTXAS_OPTIONS", "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "TRITON_KERNEL_OVERRIDE", "TRITON_OVERRIDE_DIR"}
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars
    except ImportError:
        return {}
    found = {str(k): str(v) for k, v in get_cache_invalidating_env_vars().items()}
    return {**found, **{name: os.environ[name] for name in names if name in os.environ}}


def _precisions() -> dict[str, str]:
    getter = torch._C._get_fp32_precision_getter
    return {f"{backend} {operation}": getter(backend, operation) for backend, operation in OPERATIONS}


def _getter(name: str) -> Any:
    read = getattr(torch._C, name, None)
    return None if read is None else read()


def _answered(read: Callable[[], Any]) -> Any:
    """What a legacy getter says; it refuses once precisions were set per back end, and those are listed above."""
    try:
        return read()
    except RuntimeError:
        return "set per back end"


def _multiply(a: float, b: float) -> float:
    return a * b


def _threads() -> int | None:
    """Thread count baked into C++ kernels; None where torch's own details decide whether it matters (2.13 on)."""
    from torch._inductor.codecache import FxGraphHashDetails

    return None if hasattr(FxGraphHashDetails, "_may_generate_cpu_cpp_code") else torch.get_num_threads()


def _cpu_isa() -> Any:
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:  # instruction sets are flags; the rest counts cores and caches
        return {str(k): v for k, v in capabilities().items() if isinstance(v, bool) or k == "architecture"}
    return {n: getattr(torch.cpu, n)() for n in dir(torch.cpu) if n.startswith("_is_") and n.endswith("_supported")}


def _experimental_config() -> Any:
    from torch.fx.experimental import _config

    return {k: v for k, v in _config.get_config_copy().items() if type(v) in (bool, int, float, str, type(None))}
