"""Keys are about the program alone: two processes in unlike surroundings make the same ones, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.edits import write

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "programs" / "surroundings.py"

TREE = {
    "settings/__init__.py": "SCALE = 3.0\nNAMES = {'b', 'a', 'c'}\n",
    "helpers.py": "import settings\ndef grow(x):\n    return x * settings.SCALE\ndef names():\n    return len(settings.NAMES)\n",
    "ops.py": """
import torch, helpers
@torch.library.custom_op("kcache_equal::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@twice.register_fake
def _(x):
    return torch.empty_like(x)
twice.register_autograd(lambda ctx, g: helpers.grow(g) * helpers.names())
""",
    "others.py": """
import torch, triton
import triton.language as tl
@torch.library.custom_op("kcache_equal::other", mutates_args=())
def other(x: torch.Tensor) -> torch.Tensor:
    return x + 1
@triton.jit
def unrelated(x_ptr):
    tl.store(x_ptr, 1)
""",
    "kern.py": """
import triton
import triton.language as tl
import helpers
KINDS = tl.constexpr(("b", "a"))
@triton.constexpr_function
def width():
    return len({"x", "y", "z"}) + helpers.names()
@triton.jit
def scale(x):
    return x * width()
@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (32, 64) for w in (4, 8)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def first(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), scale(tl.load(x_ptr + tl.arange(0, BLOCK))))
@triton.jit
def second(x_ptr):
    tl.store(x_ptr, len(KINDS))
""",
    "model.py": """
import torch, ops
from torch.utils.checkpoint import checkpoint
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1
    @staticmethod
    def backward(ctx, g):
        return ops.helpers.grow(g)
def block(x, w):
    return torch.relu(x @ w)
def step(x, w):
    return Shift.apply(checkpoint(block, ops.twice(x), w, use_reentrant=False)).sin()
""",
}

ONE = {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8", "USER": "one"}
TWO = {"PYTHONHASHSEED": "4711", "TZ": "Asia/Tokyo", "LC_ALL": "C", "USER": "two", "HOSTNAME": "elsewhere", "RANK": "3",
       "LOCAL_RANK": "1", "COLUMNS": "40", "EDITOR": "ed", "UNRELATED": "1"}  # fmt: skip


def run(folder: Path, tree: Path, modules: str, surroundings: dict[str, str]) -> dict[str, Any]:
    """Keys of the program in a process of its own, with every directory below `folder`."""
    places = {"HOME": "home", "TMPDIR": "tmp", "KCACHE_DIR": "store", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
              "XDG_CACHE_HOME": "xdg"}  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), **surroundings, **{name: str(folder / place) for name, place in places.items()}}
    for place in ("home", "tmp", "cwd"):
        (folder / place).mkdir(parents=True)
    command = [sys.executable, str(PROGRAM), str(tree), *modules.split()]
    done = subprocess.run(command, cwd=folder / "cwd", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def differences(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """For each key that only the first run made: the parts in which it differs from the nearest of the second."""
    found = []
    for key in one.keys() - two.keys():
        layer = key.partition(" ")[0]
        near = [{n for n in {*one[key], *parts} if one[key].get(n) != parts.get(n)} for k, parts in two.items() if k.startswith(layer)]
        found.append(f"{layer}: {sorted(min(near, key=len, default={'no such entry'}))}")
    return sorted(found)


@pytest.mark.slow
def test_two_surroundings(tmp_path: Path) -> None:
    write(TREE, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "a" / "copy elsewhere")
    one = run(tmp_path / "one", tmp_path / "here", "model kern", ONE)
    two = run(tmp_path / "two", tmp_path / "a" / "copy elsewhere", "others kern helpers ops model", TWO)
    assert one["value"] == two["value"]
    assert one["kernel"] == two["kernel"]
    assert {"aot", "fx", "cpp"} <= {key.partition(" ")[0] for key in one["stored"]}
    assert differences(one["stored"], two["stored"]) == []
    assert one["stored"] == two["stored"]
