"""A program that compiles and caches: prints one line of JSON, and must get everywhere whatever the disk does.

`python -m tests.faults.program FIRST LAST` asks a cache for entries `FIRST` to `LAST - 1` and makes those that it does
not get, as a seam of kcache does. `--torch` compiles with torch instead, through `kcache.enable()`. Limits and the
shim's orders are taken from the arguments, so that they hold from the start or from the moment that the store is open.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
from typing import Any

from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import CURRENT
from kcache.errors import StoreError
from tests.faults import entries, host


def made(first: int, last: int, fail: tuple[int, int] | None) -> dict[str, Any]:
    """What the program works out, and how many of its entries it was given."""
    try:
        cache: Cache | None = Cache.open(Settings.load())
    except StoreError as error:
        CURRENT.count("host", "error", reason=f"not enabled: {error.reason}")
        print(f"kcache is off: {error}", flush=True)
        cache = None
    if fail:
        host.arm(fail[0], host.failing(fail[1]))
    result = hashlib.sha256()
    hits = 0
    for n in range(first, last):
        value = cache.get(entries.layer(n), entries.key(n)) if cache else None
        hits += value is not None
        if value is None:
            value = entries.value(n)
            if cache:
                one = entries.draft(n)
                cache.put(one.layer, one.key, value, label=one.label, parts=one.parts, pieces=one.pieces)
        result.update(value)
        if cache and n % 20 == 19:
            cache.flush()
    if cache:
        cache.flush()
    return {"result": result.hexdigest(), "hits": hits}


def expected(first: int, last: int) -> str:
    result = hashlib.sha256()
    for n in range(first, last):
        result.update(entries.value(n))
    return result.hexdigest()


def compiled() -> dict[str, Any]:
    """A small model's gradients, compiled."""
    import torch

    import kcache

    kcache.enable()
    torch.manual_seed(0)
    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight).sum()

    torch.compile(step)(x).backward()
    (plain,) = torch.autograd.grad(step(x), weight)
    right = torch.allclose(weight.grad, plain, atol=1e-6)  # type: ignore[arg-type]
    counted = kcache.stats()
    kcache.disable()
    return {"result": "right" if right else "wrong", "hits": counted.hits, "misses": counted.misses}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("first", type=int)
    arguments.add_argument("last", type=int)
    arguments.add_argument("--user", type=int, help="who to be, once everything is imported")
    arguments.add_argument("--torch", action="store_true")
    arguments.add_argument("--limit", action="append", nargs=2, default=[], help="a resource by name and its limit")
    arguments.add_argument("--fail", type=int, nargs=2, help="from which call on to fail, and with which error number")
    given = arguments.parse_args()
    if given.user:
        os.setgid(given.user)
        os.setuid(given.user)
    for name, size in given.limit:
        resource.setrlimit(getattr(resource, name), (int(size), int(size)))
    found = compiled() if given.torch else made(given.first, given.last, given.fail)
    snapshot = CURRENT.snapshot()
    reasons = [[layer, outcome, reason, n] for (layer, outcome, reason), n in snapshot.reasons.items()]
    print(json.dumps({**found, "stored": snapshot.total("stored"), "reasons": reasons}))


if __name__ == "__main__":
    main()
