"""Programs whose graph launches the user's kernels: on a GPU for their value, anywhere for their key."""

from __future__ import annotations

from tests.edits import NEUTRAL, REPAIR, SEMANTIC, Files, Row
from tests.edits.kernels import HEAD, jit, kern
from tests.edits.launchers import config, tune

ROWS: list[Row] = []
PLUS, MINUS = kern("x + y"), kern("x - y")


def row(name: str, kind: str, before: Files, after: Files) -> None:
    """A row of any files."""
    ROWS.append(Row(f"launch: {name}", kind, before, after, "entry", "cuda"))


LAUNCH = "kern[(triton.cdiv(n, 64),)](x, y, o, n, BLOCK=64)"
TUNED = "kern[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, y, o, n)"


def entry(value: str, launch: str = LAUNCH, out: str = "torch.empty_like(x)", pre: str = "", extra: str = "") -> str:
    """A program that launches `kern` once."""
    return (
        f"import torch, triton\nimport kern as K\nfrom kern import kern\n{pre}\ndef step(x, y):\n    o = {out}\n"
        f"    n = o.numel()\n    {launch}\n    return o @ y\ndef expect(x, y):\n    return ({value}) @ y\n{extra}\n"
    )


def edit(name: str, before: str, after: str, old: str, new: str, launch: str = LAUNCH, **others: str) -> None:
    """A semantic row on the kernel's file."""
    row(name, SEMANTIC, {"kern.py": before, "entry.py": entry(old, launch, **others)}, {"kern.py": after, "entry.py": entry(new, launch, **others)})


def atom(name: str, value: str, pre: str, wanted: str, **keywords: str) -> None:
    """A semantic row: `<>` in the kernel's file and in the value wanted is 2, then 3."""
    text = kern(value, pre, **keywords)
    edit(name, text.replace("<>", "2"), text.replace("<>", "3"), wanted.replace("<>", "2"), wanted.replace("<>", "3"))


edit("body", PLUS, MINUS, "x + y", "x - y")
atom("helper", "scale(x) + y", jit("x * <>"), "x * <> + y")
atom("constant", "x * SC + y", "SC = tl.constexpr(<>)\n", "x * <> + y")
atom("default", "x * SC + y", "", "x * <> + y", parameters=", SC: tl.constexpr = <>")
atom("constexpr function", "x * fac(1) + y", "@triton.constexpr_function\ndef fac(a):\n    return a * <>\n", "x * <> + y")
atom("function as an argument", "apply(x, f) + y", jit("x * <>", "f") + jit("g(x)", "apply", "x, g: tl.constexpr"), "x * <> + y")
for field, before, after, value in (("heuristics", "2", "3", "x * {} + y"),):
    spelled = "@triton.heuristics({{'SC': lambda args: {}}})\n@triton.jit"
    texts = [kern("x * SC + y", "", ", SC: tl.constexpr", spelled.format(v)) for v in (before, after)]
    edit(field, *texts, value.format(before), value.format(after))
CONFIGS = [kern("x * SC + y", "", ", SC: tl.constexpr", tune(config(sc=v))).replace("BLOCK: tl.constexpr, SC: tl.constexpr", "SC: tl.constexpr, BLOCK: tl.constexpr") for v in (2, 3)]
edit("autotune's configuration", *CONFIGS, "x * 2 + y", "x * 3 + y", TUNED)
SAME = {"kern.py": PLUS, "entry.py": entry("x + y")}
row("num_warps of a launch", SEMANTIC, SAME, {"entry.py": entry("x + y", LAUNCH.replace("BLOCK=64", "BLOCK=64, num_warps=8"))})
row("constant of a launch", SEMANTIC, SAME, {"entry.py": entry("x + y", LAUNCH.replace("64", "32"))})
row("grid of a launch", SEMANTIC, SAME, {"entry.py": entry("x + y", LAUNCH.replace("triton.cdiv(n, 64)", "triton.cdiv(n, 64) + 1"))})
row("scalar of a launch", SEMANTIC, SAME, {"entry.py": entry("torch.cat([(x + y)[:8], torch.zeros_like(x[:8])])", LAUNCH.replace("o, n", "o, 128"), "torch.zeros_like(x)")})
row("divisibility of a scalar", SEMANTIC, SAME, {"entry.py": entry("torch.cat([(x + y).flatten()[:255], torch.zeros(1, device=x.device)]).view(16, 16)", LAUNCH.replace("o, n", "o, 255"), "torch.zeros_like(x)")})

TWO = kern("x + y") + kern("x * y").removeprefix(HEAD).replace("def kern", "def kern2")
PAIR = "kern[(4,)](x, y, o, n, BLOCK=64); p = torch.empty_like(x); K.kern2[(4,)](o, y, p, n, BLOCK=64); o = p"
row("two kernels swapped", SEMANTIC, {"kern.py": TWO, "entry.py": entry("(x + y) * y", PAIR)}, {"entry.py": entry("x * y + y", PAIR.replace("K.kern2", "K.kern").replace("kern[", "K.kern2[", 1))})
TWICE = "kern[(4,)](x, y, o, n, BLOCK=64); p = torch.zeros_like(x); kern[(4,)](o, y, p, {}, BLOCK=64); o = p"
row("second call of one kernel", SEMANTIC, {"kern.py": PLUS, "entry.py": entry("x + y + y", TWICE.format("n"))},
    {"entry.py": entry("torch.cat([(x + y + y)[:8], torch.zeros_like(x[:8])])", TWICE.format("128"))})  # fmt: skip

WRAPPED = """
from torch.library import triton_op, wrap_triton
TABLE = {'k': kern, 'all': [kern]}
SHIFT = 0.0
def factory():
    return kern
@triton_op("edits::addk", mutates_args={})
def addk(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    o = torch.empty_like(x)
    n = o.numel()
    BODY
    return o + SHIFT
"""
GRID = "[(triton.cdiv(n, 64),)](x, y, o, n, BLOCK=64)"
for label, spelled in (
    ("by name", f"wrap_triton(kern){GRID}"), ("by attribute", f"wrap_triton(K.kern){GRID}"), ("in a dictionary", f"wrap_triton(TABLE['k']){GRID}"),
    ("in a list", f"wrap_triton(TABLE['all'][0]){GRID}"), ("by a local", f"k = kern\n    w = wrap_triton(k)\n    w{GRID}"),
    ("from a factory", f"wrap_triton(factory()){GRID}"), ("by an alias of wrap_triton", f"torch.library.wrap_triton(kern){GRID}"),
):  # fmt: skip
    edit(f"kernel of a triton_op {label}", PLUS, MINUS, "x + y", "x - y", "o = addk(x, y)", pre=WRAPPED.replace("BODY", spelled))
edit("configuration of a triton_op's kernel", *CONFIGS, "x * 2 + y", "x * 3 + y", "o = addk(x, y)",
     pre=WRAPPED.replace("BODY", "wrap_triton(kern)[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, y, o, n)"))  # fmt: skip
OP = WRAPPED.replace("BODY", f"wrap_triton(kern){GRID}")
row("Python of a triton_op", SEMANTIC, {"kern.py": PLUS, "entry.py": entry("x + y", "o = addk(x, y)", pre=OP)},
    {"entry.py": entry("x + y + 2", "o = addk(x, y)", pre=OP.replace("SHIFT = 0.0", "SHIFT = 2.0"))})  # fmt: skip

CHECKPOINT = "from torch.utils.checkpoint import checkpoint\ndef inner(x, y):\n    o = torch.empty_like(x)\n    n = o.numel()\n    " + LAUNCH + "\n    return o\n"
INNER = "o = checkpoint(inner, x, y, use_reentrant=False)"
edit("under checkpoint", PLUS, MINUS, "x + y", "x - y", INNER, pre=CHECKPOINT)
BRANCH = "o = torch.cond(x.sum() > 0, inner, lambda x, y: x * y, (x, y))"
edit("in a branch of cond", PLUS, MINUS, "x + y", "x - y", BRANCH, pre=CHECKPOINT)
edit("in place on a clone", PLUS, MINUS, "x + y", "x - y", "o = x.clone(); kern[(4,)](o, y, o, n, BLOCK=64)")
edit("in place on an input", PLUS, MINUS, "x + y", "x - y", "o = x; kern[(4,)](x, y, x, n, BLOCK=64)", extra="def inputs(x, y):\n    return x.clone(), y\n")
edit("under no_grad", PLUS, MINUS, "x + y", "x - y", "with torch.no_grad():\n        " + LAUNCH)

FUNCTION = """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        o = torch.empty_like(x)
        kern[(4,)](x, y, o, 256, BLOCK=64)
        ctx.save_for_backward(y)
        return o
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        o = torch.empty_like(g)
        K.kern2[(4,)](g.contiguous(), y, o, 256, BLOCK=64)
        return o, None
GRAD = True
def step(x, y):
    return torch.mm(F.apply(x, y), torch.eye(16, device=x.device))
"""


def function(value: str) -> str:
    return "import torch\nimport kern as K\nfrom kern import kern\n" + FUNCTION + f"def expect(x, y):\n    g = torch.ones_like(y)\n    return {value}\n"


row("in the backward of an autograd.Function", SEMANTIC, {"kern.py": TWO, "entry.py": function("g * y")}, {"kern.py": TWO.replace("x * y", "x - y"), "entry.py": function("g - y")})
ATOMIC = kern("x + y", "", "", "{}").replace("tl.store", "tl.atomic_add")
RESET = [ATOMIC.format(tune("triton.Config({'BLOCK': 64}), triton.Config({'BLOCK': 128})", rest)) for rest in ("", ", reset_to_zero=['o_ptr']")]
row("reset_to_zero added", REPAIR, {"kern.py": RESET[0], "entry.py": entry("x + y", TUNED, "torch.zeros_like(x)")}, {"kern.py": RESET[1]})

OTHER = "import torch, triton\nfrom second import kern as other\ndef before(x, y):\n    torch.compile(go)(x, y)\ndef go(x, y):\n    o = torch.empty_like(x)\n    other[(4,)](x, y, o, 256, BLOCK=64)\n    return o\n"


def same(name: str, before: Files, after: Files) -> None:
    """A neutral row."""
    row(name, NEUTRAL, before, after)


same("nothing", SAME, {})
same("kernel commented", SAME, {"kern.py": PLUS.replace("    m = ", "    # bounds\n    m = ")})
same("kernel moved down", SAME, {"kern.py": PLUS.replace("@triton.jit", "\n\nOTHER = 1\n\n@triton.jit")})
same("kernel's file renamed", SAME, {"second.py": PLUS, "kern.py": "from second import kern\n"})
same("local in the caller renamed", SAME, {"entry.py": entry("x + y").replace("o = ", "r = ").replace("o.numel", "r.numel").replace(", o,", ", r,").replace("return o", "return r")})
same("caller renamed", SAME, {"entry.py": entry("x + y").replace("def step", "def run") + "step = run\n"})
same("another kernel first", SAME, {"second.py": MINUS, "entry.py": OTHER + entry("x + y")})
same("another kernel before a triton_op", {"kern.py": PLUS, "entry.py": entry("x + y", "o = addk(x, y)", pre=OP)}, {"second.py": MINUS, "entry.py": OTHER + entry("x + y", "o = addk(x, y)", pre=OP)})
same("another kernel before a checkpoint", {"kern.py": PLUS, "entry.py": entry("x + y", INNER, pre=CHECKPOINT)}, {"second.py": MINUS, "entry.py": OTHER + entry("x + y", INNER, pre=CHECKPOINT)})
same("another kernel before cond", {"kern.py": PLUS, "entry.py": entry("x + y", BRANCH, pre=CHECKPOINT)}, {"second.py": MINUS, "entry.py": OTHER + entry("x + y", BRANCH, pre=CHECKPOINT)})
same("another kernel before an autograd.Function", {"kern.py": TWO, "entry.py": function("g * y")}, {"second.py": MINUS, "entry.py": OTHER + function("g * y")})
same("another kernel before an autotuner", {"kern.py": CONFIGS[0], "entry.py": entry("x * 2 + y", TUNED)}, {"second.py": MINUS, "entry.py": OTHER + entry("x * 2 + y", TUNED)})
same("kernel of a triton_op commented", {"kern.py": PLUS, "entry.py": entry("x + y", "o = addk(x, y)", pre=OP)}, {"kern.py": PLUS.replace("    m = ", "    # bounds\n    m = ")})
