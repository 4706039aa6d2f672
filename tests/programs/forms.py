"""Programs in forms that torch refuses to cache, one a name; prints value, gradient and counts of each as JSON lines.

Every one of them calls `body`; a test runs an edited copy of this file, in which `body` multiplies once more.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import kcache


def body(a: torch.Tensor) -> torch.Tensor:
    return a @ a


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = [torch.ops.aten.mm.default]
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


def selective(x: torch.Tensor) -> Any:
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(body, x, use_reentrant=False, context_fn=contexts)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return body(grad) @ x


def function(x: torch.Tensor) -> Any:
    return Squared.apply(x)


def autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return body(x)


def cond(x: torch.Tensor) -> Any:
    return torch.cond(x.shape[0] > 3, body, lambda a: a @ a.t(), (x,)) @ torch.cond(x.sum() > 0, body, body, (x,))


def while_loop(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, body(a)), (torch.tensor(0), x))[1]


def scan(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, row: (body(c) * row, c @ row), torch.eye(4), x, dim=0)[1]


def map_(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.map import map

    return map(lambda row: body(torch.outer(row, row)), x)


def associative_scan(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: a + b, body(x), 0, combine_mode="generic")


@torch.compiler.nested_compile_region
def region(a: torch.Tensor) -> torch.Tensor:
    return body(a)


def invoke_subgraph(x: torch.Tensor) -> torch.Tensor:
    return region(x) @ region(x.t())


def score(s: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return s + body(torch.eye(2))[0, 0] * (query - key)


def bias(s: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return s * BIAS + (query - key)


BIAS = 2


def flex_attention(x: torch.Tensor) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q = x.reshape(1, 1, 4, 4).repeat(1, 1, 32, 4)
    return flex_attention(q, q, q, score_mod=bias)


def reverse(graph: torch.fx.Graph) -> None:
    """A graph pass that is a plain function: it swaps the arguments of products, `BIAS` times."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.mm.default and BIAS == 3:
            node.args = (node.args[1], node.args[0])


def passed(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(4, 4)


FORMS: dict[str, tuple[Any, bool]] = {
    "selective": (selective, True),
    "function": (function, True),
    "autocast": (autocast, False),
    "cond": (cond, False),
    "while_loop": (while_loop, False),
    "scan": (scan, False),
    "map": (map_, True),
    "associative_scan": (associative_scan, False),
    "invoke_subgraph": (invoke_subgraph, True),
    "flex_attention": (flex_attention, False),
    "passed": (passed, False),
}
"""Program by name, and whether a gradient is taken."""


def main(names: list[str]) -> None:
    kcache.enable()
    for name in names:
        program, trains = FORMS[name]
        x = (torch.arange(16.0).reshape(4, 4) / 16 + 0.5).requires_grad_(trains)
        before = kcache.stats()
        options = {"post_grad_custom_post_pass": reverse} if name == "passed" else {}
        out = torch.compile(program, fullgraph=True, options=options)(x)
        grad = torch.autograd.grad(out.sum(), x)[0] if trains else None
        expected = program(x) if name != "passed" else None
        from kcache.hooks import session

        session.current().cache.flush()
        counts = kcache.stats().since(before)
        report = {
            "form": name,
            "value": [out.float().tolist(), None if grad is None else grad.tolist()],
            "right": expected is None or torch.allclose(out, expected, rtol=1e-2),
            "layers": {layer: counts.layers.get(layer, {}) for layer in ("aot", "fx")},
            "reasons": [list(reason) for reason in counts.reasons],
        }
        print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:] or list(FORMS))
