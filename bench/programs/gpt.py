"""One training step of a 6-layer GPT in bf16, its norms and MLPs plain or Liger's Triton kernels.

    python gpt.py stock|kcache plain|liger

Prints `RESULT {json}`: seconds of the first step, the loss and the gradients' sums as
exact hexadecimal floats, what torch's counters and kcache's saw. Needs CUDA; `liger` needs
`liger-kernel`.
"""

from __future__ import annotations

import json
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

MODE, KIND = sys.argv[1:3]
if MODE == "kcache":
    import kcache

    kcache.enable()

if KIND == "liger":
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

WIDTH, HEADS, LAYERS, VOCABULARY = 512, 8, 6, 8192


class Norm(nn.Module):
    """RMS norm over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if KIND == "liger":
            return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 0.0, "llama", False)
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, up = self.gate(self.norm2(x)), self.up(self.norm2(x))
        if KIND == "liger":
            return x + self.down(LigerSiLUMulFunction.apply(gate, up))
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """Embedding, blocks, norm, head; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, VOCABULARY), targets.view(-1))


def main() -> None:
    """Run one step and print what was seen."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = Model().cuda().bfloat16()
    tokens = torch.randint(0, VOCABULARY, (4, 257), device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loss = torch.compile(model)(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    grads = [p.grad.double().sum().item().hex() for p in model.parameters()]
    found = {
        "first_step_s": first,
        "process_s": time.perf_counter() - START,
        "loss": loss.item().hex(),
        "gradients": grads,
        "fx": {k: v for k, v in counters["inductor"].items() if k.startswith("fxgraph_cache")},
        "aot": {k: v for k, v in counters["aot_autograd"].items() if "cache" in k},
    }
    if MODE == "kcache":
        found["kcache"] = kcache.stats().to_dict()
        kcache.disable()
    print("RESULT " + json.dumps(found))


main()
