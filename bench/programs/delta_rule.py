"""One forward and backward of fla's `chunk_delta_rule`, whose autotuned kernels are launched outside `torch.compile`.

    python delta_rule.py stock|kcache delta_rule

Prints `RESULT {json}` as `gpt.py` does, and the config that won for each kernel. With
`PINNED` in the environment, a JSON file of such winners, each kernel has its winner as
the only config. Needs CUDA and `fla-core`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

START = time.perf_counter()

import torch  # noqa: E402

MODE = sys.argv[1]
if MODE == "kcache":
    import kcache

    kcache.enable()

from fla.ops.delta_rule import chunk_delta_rule  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

BATCH, LENGTH, HEADS, KEYS, VALUES = 2, 1024, 8, 64, 128
WINNERS: dict[str, str] = {}
ODD: list[str] = []
"""Kernels whose config is not the fastest by the timings that were taken."""


def watch() -> None:
    """Note each winner; with `PINNED`, prune to the one named there."""
    pinned = json.loads(Path(os.environ["PINNED"]).read_text()) if "PINNED" in os.environ else {}
    run, prune = Autotuner.run, Autotuner.prune_configs

    def name(tuner: Any) -> str:
        return f"{tuner.base_fn.__module__}.{tuner.base_fn.__name__}"

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = run(self, *args, **kwargs)
        WINNERS[name(self)] = str(self.best_config)
        timings = getattr(self, "configs_timings", None)
        if timings and timings[self.best_config] > min(timings.values()):
            ODD.append(name(self))
        return found

    def pruned(self: Any, kwargs: Any) -> Any:
        configs = prune(self, kwargs)
        return [c for c in configs if str(c) == pinned.get(name(self), str(c))]

    Autotuner.run, Autotuner.prune_configs = noted, pruned


def digest(tensor: torch.Tensor) -> str:
    """Of the tensor's bits."""
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    """Run one step and print what was seen."""
    watch()
    torch.manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    q = some(BATCH, LENGTH, HEADS, KEYS).requires_grad_()
    k = torch.nn.functional.normalize(some(BATCH, LENGTH, HEADS, KEYS), dim=-1).requires_grad_()
    v = some(BATCH, LENGTH, HEADS, VALUES).requires_grad_()
    beta = some(BATCH, LENGTH, HEADS).sigmoid().detach().requires_grad_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    out, _ = chunk_delta_rule(q, k, v, beta)
    out.backward(torch.ones_like(out))
    torch.cuda.synchronize()
    found: dict[str, Any] = {
        "first_step_s": time.perf_counter() - begin,
        "process_s": time.perf_counter() - START,
        "loss": digest(out),
        "gradients": [digest(t.grad) for t in (q, k, v, beta) if t.grad is not None],
        "winners": WINNERS,
        "odd": ODD,
    }
    if MODE == "kcache":
        found["kcache"] = kcache.stats().to_dict()
        kcache.disable()
    print("RESULT " + json.dumps(found))


main()
