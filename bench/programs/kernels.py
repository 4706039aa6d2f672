"""A graph with a user's own Triton kernel between two matmuls, forward only, on a GPU.

What is expected comes from launching the same kernel without the compiler, from the text as it is now.
"""

from __future__ import annotations

import torch
from activation import activation
from measure import first_step


def block(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    hidden = activation(x @ w)
    return [torch.nn.functional.rms_norm(hidden + x, (x.shape[-1],)), hidden.square().sum(dim=-1)]


if __name__ == "__main__":
    torch.manual_seed(0)
    x, w = (torch.randn(256, 256, device="cuda") / 16 for _ in range(2))
    first_step(lambda: torch.compile(block)(x, w), lambda: block(x, w))
