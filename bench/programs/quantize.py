"""A user's own operator: fake quantization with a straight-through gradient.

demo.py edits this file. `backward` is Python that the compiler traces once and bakes into the compiled graph; nothing
of it is left in the graph that stock torch hashes.
"""

from __future__ import annotations

from typing import Any

import torch

STEPS = 16


@torch.library.custom_op("bench::quantize", mutates_args=())
def quantize(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.clamp(torch.round(x / scale), -STEPS, STEPS) * scale


@quantize.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def setup_context(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    (x,) = ctx.saved_tensors
    # The gradient passes straight through.
    return grad * (x.abs() <= 1.0), None


quantize.register_autograd(backward, setup_context=setup_context)
