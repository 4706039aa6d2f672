"""A training step over a user operator, a product and pointwise code; prints what happened as one JSON line.

The operator's backward scales by `SCALE`, so a wrong gradient is seen in `grad`. Children that
the process starts are listed as the system sees them, by an audit hook.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

CHILDREN: list[str] = []
STARTS = {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "os.fork", "os.forkpty"}


def watch(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: keep the name of every program that is started."""
    if event in STARTS:
        CHILDREN.append(f"{event} {args[:2]}")


sys.addaudithook(watch)

import torch  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

if "--stock" not in sys.argv:
    import kcache

    assert kcache.enable()


@torch.library.custom_op("lab::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scaled.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return grad * ctx.by, None


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.by = inputs[1]


scaled.register_autograd(backward, setup_context=setup_context)


def digest(value: torch.Tensor) -> str:
    """Every bit of a tensor."""
    return hashlib.sha256(value.detach().numpy().tobytes()).hexdigest()


def main() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(32, 16, requires_grad=True), torch.randn(16, 8, requires_grad=True)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.sin(scaled(x, 3.0)) @ w).relu().sum()

    out = torch.compile(step)(x, w)
    out.backward()
    assert x.grad is not None and w.grad is not None
    grads = [x.grad, w.grad]
    values = [digest(t) for t in (out, *grads)]
    x.grad = w.grad = None
    expected = step(x, w)
    expected.backward()
    close = torch.allclose(out, expected, rtol=1e-4) and all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(grads, (x.grad, w.grad))
    )
    torch_counts = {n: v for g in ("inductor", "aot_autograd") for n, v in counters[g].items() if "cache" in n}
    report = {"values": values, "close": close, "torch": torch_counts, "children": CHILDREN}
    if "--stock" not in sys.argv:
        from kcache.hooks import session

        session.current().cache.flush()  # an entry counts as stored after its commit
        report["kcache"] = kcache.stats().to_dict()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
