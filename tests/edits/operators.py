"""Programs with operators of the user's: what is registered for them is baked into what is compiled."""

from __future__ import annotations

from tests.edits import NEUTRAL, OPAQUE, REPAIR, SEMANTIC, Row

ROWS: list[Row] = []

TIMES = "import torch\ndef times(x, k):\n    return torch.addmm(x, x, x, beta=float(k), alpha=0.0)\n"
"""A factor by a product, which Inductor compiles without a C++ compiler."""


def both(name: str, kind: str, op: str, entry: str, old: dict[str, str], new: dict[str, str]) -> None:
    """A row of `op.py` and `entry.py`; `<name>` in them is replaced by the values of each version."""
    versions = []
    for values in (old, new):
        files = {"op.py": TIMES + op, "entry.py": "import torch, op\nfrom op import times\n" + entry}
        for key, value in values.items():
            files = {file: text.replace(f"<{key}>", value) for file, text in files.items()}
        versions.append(files)
    ROWS.append(Row(f"operator: {name}", kind, versions[0], versions[1], "entry"))


CUSTOM = """
<pre>
@torch.library.custom_op("edits::foo", mutates_args=())
def foo(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@foo.register_fake
def _(x):
    return torch.empty_like(x)
def setup(ctx, inputs, output):
    <setup>
def backward(ctx, g):
    <backward>
foo.register_autograd(backward, setup_context=setup)
"""
GRADIENT = "GRAD = True\ndef step(x, y):\n    return times(op.foo(x), 3)\ndef expect(x, y):\n    return torch.ones_like(x) * <value>\n"
ATOM = {"pre": "", "setup": "pass", "backward": "return times(g, 2)", "value": "6"}


def custom(name: str, kind: str = SEMANTIC, new: dict[str, str] | None = None, old: dict[str, str] | None = None) -> None:
    """A row on the pieces of one custom operator, whose gradient is the value."""
    before = {**ATOM, **(old or {})}
    both(name, kind, CUSTOM, GRADIENT, before, {**before, **(new or {})})


custom("backward", new={"backward": "return times(g, 5)", "value": "15"})
custom("backward's global", old={"pre": "K = 2", "backward": "return times(g, K)"}, new={"pre": "K = 4", "value": "12"})
custom("backward's helper", old={"pre": "def h(g):\n    return times(g, 2)", "backward": "return h(g)"},
       new={"pre": "def h(g):\n    return times(g, 7)", "value": "21"})  # fmt: skip
custom("setup_context", old={"setup": "ctx.k = 2", "backward": "return times(g, ctx.k)"}, new={"setup": "ctx.k = 9", "value": "27"})
custom("setup_context's global", old={"pre": "K = 2", "setup": "ctx.k = K", "backward": "return times(g, ctx.k)"}, new={"pre": "K = 3", "value": "9"})
custom("backward commented", NEUTRAL, new={"backward": "# twice\n    return times(g, 2)"})
custom("backward's local renamed", NEUTRAL, old={"backward": "a = times(g, 2)\n    return a"}, new={"backward": "b = times(g, 2)\n    return b"})
custom("setup_context's docstring", NEUTRAL, new={"setup": "'Nothing to keep.'"})
custom("moved down", NEUTRAL, new={"pre": "\nOTHER = object()\n\n"})
custom("backward that reads the clock", OPAQUE, old={"pre": "import time", "backward": "return times(g, time.time())"})

FAKE = """
@torch.library.custom_op("edits::wide", mutates_args=())
def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2
@wide.register_fake
def _(x):
    <comment>return torch.empty_like(x, dtype=<dtype>)
"""
WIDE = "def step(x, y):\n    return op.wide(x) @ torch.eye(16, dtype=torch.float64)\ndef expect(x, y):\n    return x.double() * 2\n"
WRONG, RIGHT = {"dtype": "torch.float32", "comment": ""}, {"dtype": "torch.float64", "comment": ""}
both("fake corrected", REPAIR, FAKE, WIDE, WRONG, RIGHT)
both("fake commented", NEUTRAL, FAKE, WIDE, RIGHT, {**RIGHT, "comment": "# doubles\n    "})
SHAPE = """
@torch.library.custom_op("edits::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x[:8].clone()
@half.register_fake
def _(x):
    return x.new_empty(<rows>, 16)
"""
both("fake's shape corrected", REPAIR, SHAPE, "def step(x, y):\n    return op.half(x) @ y\ndef expect(x, y):\n    return x[:8] @ y\n", {"rows": "16"}, {"rows": "8"})

IMPL = """
lib = torch.library.Library("edits_lib", "DEF")
lib.define("bar(Tensor x) -> Tensor")
K = <k>
def bar(x):<comment>
    return <body>
lib.impl("bar", bar, "<key>")
<more>
"""
BAR = "def step(x, y):\n    return times(torch.ops.edits_lib.bar(x), 3)\ndef expect(x, y):\n    return x * 3 * <value>\n"
COMPOSITE = {"k": "2", "body": "times(x, 2)", "key": "CompositeImplicitAutograd", "value": "2", "more": "", "comment": ""}


def impl(name: str, kind: str, new: dict[str, str], old: dict[str, str] | None = None) -> None:
    """A row on an operator that is registered by dispatch key."""
    before = {**COMPOSITE, **(old or {})}
    both(name, kind, IMPL, BAR, before, {**before, **new})


impl("composite implementation", SEMANTIC, {"body": "times(x, 7)", "value": "7"})
impl("composite implementation's global", SEMANTIC, {"k": "5", "value": "5"}, {"body": "times(x, K)"})
impl("composite implementation commented", NEUTRAL, {"comment": "\n    # twice"})
impl("composite implementation as a lambda", SEMANTIC, {"more": "f = lambda x: times(x, 7)\nlib2.impl('baz', f, 'CompositeImplicitAutograd')", "value": "7"},
     {"body": "torch.ops.edits_lib2.baz(x)", "more": "f = lambda x: times(x, 2)\nlib2.impl('baz', f, 'CompositeImplicitAutograd')",
      "k": "2\nlib2 = torch.library.Library('edits_lib2', 'DEF')\nlib2.define('baz(Tensor x) -> Tensor')"})  # fmt: skip
impl("implementation under Meta corrected", REPAIR, {"more": "lib.impl('bar', lambda x: torch.empty_like(x), 'Meta')"},
     {"key": "CPU", "body": "x * 2", "more": "lib.impl('bar', lambda x: torch.empty_like(x, dtype=torch.float64), 'Meta')"})  # fmt: skip

NESTED = """
@torch.library.custom_op("edits::inner", mutates_args=())
def inner(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@inner.register_fake
def _(x):
    return torch.empty_like(x)
inner.register_autograd(lambda ctx, g: times(g, <k>), setup_context=lambda ctx, inputs, output: None)
lib = torch.library.Library("edits_outer", "DEF")
lib.define("outer(Tensor x) -> Tensor")
lib.impl("outer", lambda x: torch.ops.edits.inner(x), "CompositeImplicitAutograd")
"""
both("backward of an operator that an operator calls", SEMANTIC, NESTED,
     "GRAD = True\ndef step(x, y):\n    return times(torch.ops.edits_outer.outer(x), 1)\ndef expect(x, y):\n    return torch.ones_like(x) * <k>\n",
     {"k": "2"}, {"k": "5"})  # fmt: skip

MUTATES = """
@torch.library.custom_op("edits::add_", mutates_args={"x"})
def add_(x: torch.Tensor, k: float) -> None:
    x += k
"""
both("argument of a mutating operator", SEMANTIC, MUTATES, "def step(x, y):\n    z = x @ y\n    op.add_(z, <k>)\n    return z\ndef expect(x, y):\n    return x @ y + <k>\n", {"k": "1.0"}, {"k": "2.0"})
both("run-time implementation", NEUTRAL, MUTATES.replace("+= k", "+= k<nothing>"), "def step(x, y):\n    z = x @ y\n    op.add_(z, 1.0)\n    return z\ndef expect(x, y):\n    return x @ y + 1\n",
     {"nothing": ""}, {"nothing": " * 1.0"})  # fmt: skip

TRITON_OP = """
from torch.library import triton_op
K = <k>
@triton_op("edits::scaled", mutates_args={})
def scaled(x: torch.Tensor) -> torch.Tensor:<comment>
    return times(x, K)
"""
SCALED = "def step(x, y):\n    return op.scaled(x) @ y\ndef expect(x, y):\n    return x * <k> @ y\n"
both("body of a triton_op", SEMANTIC, TRITON_OP, SCALED, {"k": "2", "comment": ""}, {"k": "3", "comment": ""})
both("body of a triton_op commented", NEUTRAL, TRITON_OP, SCALED, {"k": "2", "comment": ""}, {"k": "2", "comment": "  # scaled"})

INDEX = """
@torch.library.custom_op("edits::chosen", mutates_args=())
def chosen(x: torch.Tensor, kernel_idx: int) -> torch.Tensor:
    return x * kernel_idx
@chosen.register_fake
def _(x, kernel_idx):
    return torch.empty_like(x)
"""
both("argument called kernel_idx", SEMANTIC, INDEX, "def step(x, y):\n    return op.chosen(x, kernel_idx=<k>) @ y\ndef expect(x, y):\n    return x * <k> @ y\n", {"k": "2"}, {"k": "3"})
