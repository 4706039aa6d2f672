"""One rank of two: trains a step under settings that make the ranks talk while they compile, and prints its counts."""

from __future__ import annotations

import datetime
import json
import sys

import torch
import torch._functorch.config

import kcache


def main(rank: int, meeting: str, talk: bool) -> None:
    kcache.enable()
    patience = datetime.timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=patience)
    torch._functorch.config._sync_decision_cross_ranks = talk
    x = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
    out = torch.compile(lambda x: torch.sin(x @ x) @ x)(x)
    out.sum().backward()
    assert x.grad is not None
    expected = torch.autograd.grad((torch.sin(x @ x) @ x).sum(), x)[0]
    torch.distributed.barrier()
    found = kcache.stats()
    report = {
        "right": torch.allclose(x.grad, expected, atol=1e-5),
        "aot": found.layers.get("aot", {}),
        "reasons": [list(reason) for reason in found.reasons if reason[0] in ("aot", "fx")],
    }
    print(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "talk")
