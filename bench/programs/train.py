"""One training step of a small model that uses a user's own operator: forward and backward, on the CPU."""

from __future__ import annotations

import torch
from measure import first_step
from quantize import quantize


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.silu(self.up(quantize(x, 0.1)))
        return self.down(hidden).square().mean()


def step(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The loss and the gradient of `x`, which goes through the operator's backward."""
    x = x.detach().requires_grad_()
    loss = model(x)
    loss.backward()
    assert x.grad is not None
    return [loss.detach(), 1e3 * x.grad]


if __name__ == "__main__":
    torch.manual_seed(0)
    model, x = Model(), torch.randn(32, 64)
    first_step(lambda: step(torch.compile(model), x), lambda: step(model, x))
