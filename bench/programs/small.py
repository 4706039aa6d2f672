"""The small graph: a matmul, a few pointwise operations and a reduction, forward only, on the CPU."""

from __future__ import annotations

import torch
from measure import first_step


def block(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    y = torch.nn.functional.gelu(x @ w)
    y = y * torch.sigmoid(x) + 0.5
    return [y, (y - y.mean(dim=-1, keepdim=True)).square().sum(dim=-1)]


if __name__ == "__main__":
    torch.manual_seed(0)
    x, w = torch.randn(64, 128), torch.randn(128, 128)
    first_step(lambda: torch.compile(block)(x, w), lambda: block(x, w))
