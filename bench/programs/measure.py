"""What every program here shares: start with or without kcache, time the first step, print one line of JSON.

`python train.py stock` or `python train.py kcache`. All of torch and the compiler is imported before the clock starts;
for kcache the clock also covers `kcache.enable()`, since a program without kcache does not pay for that. The expected
value is computed after the clock, in the same process and without the compiler, so a stale artifact shows as wrong.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.compile_fx
from torch._dynamo.utils import counters

_COUNTERS = {
    "fx": ("inductor", "fxgraph_cache"),
    "aot": ("aot_autograd", "autograd_cache"),
}


def first_step(step: Callable[[], list[torch.Tensor]], eager: Callable[[], list[torch.Tensor]]) -> None:
    """Run `step` once against the clock, compare what it returns with `eager()`, and print the account."""
    use_kcache = sys.argv[1:] == ["kcache"]
    started = time.perf_counter()
    if use_kcache:
        import kcache

        kcache.enable()
    values = step()
    if values[0].is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    print(json.dumps(_account(values, eager(), seconds, use_kcache)))


def _account(
    values: list[torch.Tensor], expected: list[torch.Tensor], seconds: float, use_kcache: bool
) -> dict[str, Any]:
    account: dict[str, Any] = {
        "first_s": seconds,
        "right": all(torch.allclose(v, e, rtol=1e-3, atol=1e-4) for v, e in zip(values, expected, strict=True)),
        "sums": [value.double().sum().item() for value in values],
        "counters": {
            layer: {outcome: counters[group][f"{prefix}_{outcome}"] for outcome in ("hit", "miss", "bypass")}
            for layer, (group, prefix) in _COUNTERS.items()
        },
    }
    if use_kcache:
        import kcache

        account["kcache"] = kcache.stats().to_dict()
    return account
