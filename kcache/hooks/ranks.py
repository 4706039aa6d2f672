"""Compiles in which the ranks of a distributed program talk to each other.

Under some settings a compile issues collectives: the ranks agree on what to save for the
backward pass, share timings, compare graphs. A rank that finds its entry does not take
part, and those that compile would wait for it for ever. Such a compile is not cached, as
long as nobody asks all ranks first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

TALKING: dict[str, tuple[str, ...]] = {
    "torch._functorch.config": ("_sync_decision_cross_ranks",),
    "torch._inductor.config": (
        "distributed_max_autotune_gemm",
        "_collective.auto_select",
        "aten_distributed_optimizations.enable_overlap_scheduling",
        "aten_distributed_optimizations.spmd_check",
    ),
    "torch._inductor.config_comms": ("runtime_estimations_align_across_all_distributed_ranks",),
}
"""Switches by module under which a compile issues collectives: `all_gather_object` and `all_reduce` of
`_functorch/partitioners.py`, `_inductor/comms.py`, `_inductor/distributed_autotune.py`, `_inductor/select_algorithm.py`
and `_inductor/fx_passes/` in torch 2.11 to 2.13. Dynamo's own are issued before any cache is asked."""


def talking() -> str:
    """Name of a setting under which the ranks of this program talk while they compile, or ""."""
    if not _several():
        return ""
    return next((f"{module}.{name}" for module, name in _switches() if _value(module, name)), "")


def _several() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def _switches() -> Iterator[tuple[str, str]]:
    for module, names in TALKING.items():
        for name in names:
            yield module, name


def _value(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    return found
