"""Prints every key that a program has in the surroundings in which it is run, as one JSON line.

`python surroundings.py TREE MODULE...` imports the modules of `TREE` in the order given and
compiles `model.step` forward and backward on the CPU. Per layer the keys that the store then
holds, with the digests of their parts by name; under `kernel` the fingerprints of the kernels.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import kcache


def stored() -> dict[str, Any]:
    """Layer and key of each entry, and the parts that the key is made of."""
    from kcache.hooks import session
    from kcache.store import Store

    session.current().cache.flush()
    store = Store.open(Path(os.environ["KCACHE_DIR"]), readonly=True)
    found = {f"{e.layer} {e.key.hex}": {p.name: p.digest.hex for p in store.parts(e.layer, e.key)} for e in store.scan()}
    store.close()
    return found


def main(tree: str, modules: list[str]) -> None:
    """Import, compile, report."""
    assert kcache.enable()
    sys.path.insert(0, tree)
    loaded = {name: importlib.import_module(name) for name in modules}
    x = torch.linspace(-1, 1, 64).view(8, 8).requires_grad_()
    torch.compile(loaded["model"].step)(x, torch.ones(8, 8)).sum().backward()
    kernels = {name: kcache.fingerprint(getattr(loaded["kern"], name)).digest.hex for name in ("first", "second")}
    print(json.dumps({"kernel": kernels, "stored": stored(), "value": x.grad.sum().item()}))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main(sys.argv[1], sys.argv[2:])
