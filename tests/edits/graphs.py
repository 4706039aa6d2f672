"""Programs of torch alone: what is traced, what torch would not look at, and what is set around it."""

from __future__ import annotations

from tests.edits import NEUTRAL, OPAQUE, SEMANTIC, Row
from tests.edits.operators import TIMES

ROWS: list[Row] = []


def program(name: str, kind: str, text: str, old: dict[str, str], new: dict[str, str]) -> None:
    """A row of one module; `<name>` in it is replaced by the values of each version."""
    versions = []
    for values in (old, new):
        file = TIMES + text
        for key, value in values.items():
            file = file.replace(f"<{key}>", value)
        versions.append({"entry.py": file})
    ROWS.append(Row(f"graph: {name}", kind, versions[0], versions[1], "entry"))


def atom(name: str, text: str, old: str, new: str) -> None:
    """A semantic row with one difference, `<k>`."""
    program(name, SEMANTIC, text, {"k": old}, {"k": new})


def same(name: str, text: str, old: str, new: str) -> None:
    """A neutral row with one difference, `<c>`."""
    program(name, NEUTRAL, text, {"c": old}, {"c": new})


PLAIN = "def step(x, y):\n    <c>return torch.relu(x @ y) <op> 1\ndef expect(x, y):\n    return torch.relu(x @ y) <op> 1\n"
program("pointwise code", SEMANTIC, PLAIN, {"op": "+", "c": ""}, {"op": "-", "c": ""})
program("pointwise code commented", NEUTRAL, PLAIN, {"op": "+", "c": ""}, {"op": "+", "c": "# moved\n\n    "})
atom("order of operands", "def step(x, y):\n    return (x @ y @ <k>) / 100\ndef expect(x, y):\n    return (x @ y @ <k>) / 100\n", "x", "y")
atom("a constant", "def step(x, y):\n    return times(x, <k>)\ndef expect(x, y):\n    return x * <k>\n", "2", "3")
atom("a constant of another type", "def step(x, y):\n    return x * <k>\ndef expect(x, y):\n    return x * <k>\n", "2", "2.5")
atom("global", "K = <k>\ndef step(x, y):\n    return times(x, K)\ndef expect(x, y):\n    return x * <k>\n", "2", "3")
atom("helper", "def h(x):\n    return times(x, <k>)\ndef step(x, y):\n    return h(x) @ y\ndef expect(x, y):\n    return x * <k> @ y\n", "2", "3")
atom("closure", "def make(k):\n    def step(x, y):\n        return times(x, k)\n    return step\nstep = make(<k>)\ndef expect(x, y):\n    return x * <k>\n", "2", "3")
atom("number of uses", "def step(x, y):\n    for _ in range(<k>):\n        x = x @ y\n    return x\ndef expect(x, y):\n    for _ in range(<k>):\n        x = x @ y\n    return x\n", "2", "3")
atom("output", "def step(x, y):\n    a = x @ y\n    b = y @ x\n    return <k>\ndef expect(x, y):\n    a = x @ y\n    b = y @ x\n    return <k>\n", "a @ b", "b @ a")
same("locals renamed", "def step(x, y):\n    <c>\ndef expect(x, y):\n    return x @ y @ y\n", "a = x @ y\n    return a @ y", "b = x @ y\n    return b @ y")
same("arguments renamed", "def step(<c>):\n    return (lambda p, q: p @ q @ q)(<c>)\ndef expect(x, y):\n    return x @ y @ y\n", "x, y", "left, right")
same("function renamed", "def <c>(x, y):\n    return x @ y @ y\nstep = <c>\ndef expect(x, y):\n    return x @ y @ y\n", "one", "two")
same("moved down", "<c>\ndef step(x, y):\n    return x @ y @ y\ndef expect(x, y):\n    return x @ y @ y\n", "", "\n\nOTHER = 1\n\n")
same("code split into helpers", "def h(x, y):\n    return x @ y\ndef step(x, y):\n    return <c>\ndef expect(x, y):\n    return x @ y @ y\n", "x @ y @ y", "h(h(x, y), y)")
same("unrelated import", "<c>\ndef step(x, y):\n    return x @ y @ y\ndef expect(x, y):\n    return x @ y @ y\n", "", "import json, xml.dom")
MODULE = ("class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.<c> = torch.nn.Parameter(torch.eye(16))\n"
          "    def forward(self, x):\n        return times(x @ self.<c>, <k>)\nm = M().requires_grad_(False)\n"
          "def step(x, y):\n    return m(x) @ y\ndef expect(x, y):\n    return x * <k> @ y\n")  # fmt: skip
program("module's forward", SEMANTIC, MODULE, {"c": "w", "k": "2"}, {"c": "w", "k": "3"})
program("module's parameter renamed", NEUTRAL, MODULE, {"c": "w", "k": "2"}, {"c": "weight", "k": "2"})
program("module's values", NEUTRAL, MODULE.replace("torch.eye(16))", "torch.eye(16) * <v>)").replace("x * <k>", "x * <k> * <v>"), {"c": "w", "k": "2", "v": "1"}, {"c": "w", "k": "2", "v": "4"})
atom("layer's setting", "m = torch.nn.Linear(16, 16, bias=False).requires_grad_(False)\ntorch.nn.init.eye_(m.weight)\ndef step(x, y):\n    return torch.nn.functional.linear(m(x), y<k>)\n"
     "def expect(x, y):\n    return x @ (y<k>).T\n", "", ".T")  # fmt: skip

FUNCTION = ("class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return times(x, <f>)\n    @staticmethod\n"
            "    def backward(ctx, g):\n        return <b><c>\n<pre>\nGRAD = True\n"
            "def step(x, y):\n    return times(F.apply(x), 3)\ndef expect(x, y):\n    return torch.ones_like(x) * <v>\n")  # fmt: skip
F0 = {"f": "2", "b": "times(g, 2)", "c": "", "pre": "", "v": "6"}
program("autograd.Function: backward", SEMANTIC, FUNCTION, F0, {**F0, "b": "times(g, 5)", "v": "15"})
F1 = {**F0, "b": "times(g, K)", "pre": "K = 2"}
program("autograd.Function: backward's global", SEMANTIC, FUNCTION, F1, {**F1, "pre": "K = 4", "v": "12"})
F2 = {**F0, "b": "h(g)", "pre": "def h(g):\n    return times(g, 2)"}
program("autograd.Function: backward's helper", SEMANTIC, FUNCTION, F2, {**F2, "pre": "def h(g):\n    return times(g, 7)", "v": "21"})
program("autograd.Function: commented", NEUTRAL, FUNCTION, F0, {**F0, "c": "  # same"})
FORWARD = FUNCTION.replace("GRAD = True\n", "").replace("torch.ones_like(x) * <v>", "x * 3 * <f>")
program("autograd.Function: forward", SEMANTIC, FORWARD, F0, {**F0, "f": "5"})

AUTOCAST = ("def step(x, y):\n    with torch.autocast('cpu', dtype=<k>):\n        return x @ y<c>\n"
            "def expect(x, y):\n    with torch.autocast('cpu', dtype=<k>):\n        return x @ y\n")  # fmt: skip
program("autocast: dtype", SEMANTIC, AUTOCAST, {"k": "torch.bfloat16", "c": ""}, {"k": "torch.float16", "c": ""})
program("autocast: commented", NEUTRAL, AUTOCAST, {"k": "torch.bfloat16", "c": ""}, {"k": "torch.bfloat16", "c": "  # same"})
NO_GRAD = "def step(x, y):\n    with torch.no_grad():\n        return times(x, <k>) @ y\ndef expect(x, y):\n    return x * <k> @ y\n"
atom("under no_grad", NO_GRAD, "2", "3")

CHECKPOINT = ("from torch.utils.checkpoint import checkpoint\ndef inner(x, y):<c>\n    return times(x, <k>) @ y\n"
              "def step(x, y):\n    return checkpoint(inner, x, y, use_reentrant=False) @ y\n"
              "def expect(x, y):\n    return x * <k> @ y @ y\n")  # fmt: skip
program("checkpoint", SEMANTIC, CHECKPOINT, {"k": "2", "c": ""}, {"k": "3", "c": ""})
program("checkpoint commented", NEUTRAL, CHECKPOINT, {"k": "2", "c": ""}, {"k": "2", "c": "\n    # twice"})
COND = ("def yes(x, y):<c>\n    return times(x, <k>) @ y\ndef no(x, y):\n    return y @ x\n"
        "def step(x, y):\n    return torch.cond(x.sum() > 0, yes, no, (x, y))\ndef expect(x, y):\n    return x * <k> @ y\n")  # fmt: skip
program("cond's branch", SEMANTIC, COND, {"k": "2", "c": ""}, {"k": "3", "c": ""})
program("cond's branch commented", NEUTRAL, COND, {"k": "2", "c": ""}, {"k": "2", "c": "  # twice"})
atom("the branch not taken", COND.replace("y @ x", "times(y, <j>)").replace("<c>", "").replace("<k>", "2").replace("<j>", "<k>"), "2", "3")
atom("while_loop's body", "from torch._higher_order_ops.while_loop import while_loop\ndef step(x, y):\n    i = torch.zeros((), dtype=torch.int64)\n"
     "    return while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, times(x, <k>)), (i, x))[1]\ndef expect(x, y):\n    return x * <k> * <k>\n", "2", "3")  # fmt: skip

SUBCLASS = """from torch.utils._pytree import tree_map
class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.shape, strides=t.stride(), dtype=t.dtype, device=t.device)
    def __init__(self, t):
        self.t = t
    def __tensor_flatten__(self):
        return ["t"], None
    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Scaled(inner["t"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        bare = lambda a: a.t if isinstance(a, Scaled) else a<c>
        out = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        if func is torch.ops.aten.mm.default:
            out = times(out, <k>)
        return tree_map(lambda o: Scaled(o) if isinstance(o, torch.Tensor) else o, out)
def inputs(x, y):
    return Scaled(x), y
def step(x, y):
    return x @ y
def value(result):
    return result.t
def expect(x, y):
    return x @ y * <k>
"""
program("tensor subclass's dispatch", SEMANTIC, SUBCLASS, {"k": "2", "c": ""}, {"k": "5", "c": ""})
program("tensor subclass commented", NEUTRAL, SUBCLASS, {"k": "2", "c": ""}, {"k": "2", "c": "  # unwrap"})

PASS = """
from torch._inductor.custom_graph_pass import CustomGraphPass
K = <k>
class Swap(CustomGraphPass):
    def __call__(self, graph):<c>
        for node in graph.nodes:
            if node.target is torch.ops.aten.mm.default:
                node.args = node.args[::<step>]
    def uuid(self):
        return "swap"
torch._inductor.config.<where> = <pass>
def step(x, y):
    return x @ y
def expect(x, y):
    return x @ y if <k> == 1 else y @ x
"""
"""Its `uuid` is the user's, who forgets to change it."""
for where in ("post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass"):
    P0 = {"where": where, "pass": "Swap()", "step": "<k>", "k": "-1", "c": ""}
    program(f"{where}: body", SEMANTIC, PASS, P0, {**P0, "k": "1"})
    program(f"{where}: commented", NEUTRAL, PASS, P0, {**P0, "c": "  # swap"})
P1 = {"where": "post_grad_custom_pre_pass", "pass": "Swap()", "step": "K", "k": "-1", "c": ""}
program("pass's global", SEMANTIC, PASS, P1, {**P1, "k": "1"})
P2 = {**P1, "pass": "Swap().__call__"}
program("pass that is a plain function", SEMANTIC, PASS, P2, {**P2, "k": "1"})
program("pass that is a plain function, commented", NEUTRAL, PASS, P2, {**P2, "c": "  # swap"})
program("pass that wants no entry", OPAQUE, PASS.replace('"swap"', "None"), P1, P1)
program("pass that reads a file", OPAQUE, PASS, {**P1, "c": "\n        open('x')"}, {**P1, "c": "\n        open('x')"})

atom("setting of Inductor's", "import torch._inductor.config as c\nc.<k>\ndef step(x, y):\n    return x @ y\ndef expect(x, y):\n    return x @ y\n", "fallback_random = False", "fallback_random = True")
atom("setting given to compile", "OPTIONS = {'options': {'max_fusion_size': <k>}}\ndef step(x, y):\n    return x @ y\ndef expect(x, y):\n    return x @ y\n", "64", "32")
atom("shape of an input", "def inputs(x, y):\n    return x[:<k>], y\ndef step(x, y):\n    return x @ y\ndef expect(x, y):\n    return x[:<k>] @ y\n", "8", "4")
atom("strides of an input", "def inputs(x, y):\n    return x<k>, y\ndef step(x, y):\n    return x @ y\ndef expect(x, y):\n    return x<k> @ y\n", "", ".T")
atom("dtype of an input", "def inputs(x, y):\n    return x<k>, y<k>\ndef step(x, y):\n    return x @ y\ndef expect(x, y):\n    return x<k> @ y<k>\n", "", ".double()")
atom("input that requires a gradient", "def inputs(x, y):\n    return x.clone()<k>, y\ndef step(x, y):\n    return x @ y\ndef value(r):\n    return r.detach()\ndef expect(x, y):\n    return x @ y\n", "", ".requires_grad_()")

JOINT = """
def swap(graph, inputs):<c>
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.mm.default:
            node.args = node.args[::<k>]
    return graph
torch._functorch.config.joint_custom_pass = swap
GRAD = True
def step(x, y):
    return x @ y
def expect(x, y):
    return torch.ones_like(x) @ y.T if <k> == 1 else y.T @ torch.ones_like(x)
"""
"""A pass of AOTAutograd's, which torch leaves out of its key."""
program("joint_custom_pass", SEMANTIC, JOINT, {"k": "-1", "c": ""}, {"k": "1", "c": ""})
program("joint_custom_pass commented", NEUTRAL, JOINT, {"k": "-1", "c": ""}, {"k": "-1", "c": "  # swap"})

SETTING = """
def chosen(*args):<c>
    return <k>
torch._inductor.config.<name> = <value>
def step(x, y):
    return x @ y + 1
def expect(x, y):
    return x @ y + 1
"""
"""What it answers changes no value here; it must count all the same."""
for name, value, one, two in (
    ("_pre_fusion_custom_pass", "chosen", "args[0]", "list(args[0])"),
    ("_post_fusion_custom_pass", "chosen", "args[0]", "list(args[0])"),
    ("_fuse_ddp_communication_passes", "[chosen]", "None", "0"),
    ("estimate_op_runtime", "chosen", "1.0", "2.0"),
):
    S0 = {"name": name, "value": value, "k": one, "c": ""}
    program(f"function in {name}", SEMANTIC, SETTING, S0, {**S0, "k": two})
    program(f"function in {name}, commented", NEUTRAL, SETTING, S0, {**S0, "c": "  # a choice"})
for name, one, two in (("_micro_pipeline_tp", "False", "True"), ("_use_fp64_for_unbacked_floats", "True", "False")):
    S0 = {"name": name, "k": "None", "c": ""}
    program(f"private setting {name}", SEMANTIC, SETTING, {**S0, "value": one}, {**S0, "value": two})

MATMUL = """
def <name>(a, b, *, out):<c>
    torch.mul(a.mm(b), <k>, out=out)
torch._inductor.config.external_matmul = [<name>]
OPTIONS = {"options": {"max_autotune_gemm": True, "max_autotune_gemm_backends": ""}}
def step(x, y):
    return x @ y + 1
def expect(x, y):
    return (x @ y) * <k> + 1
"""
"""No other way to make a product is left to Inductor."""
M0 = {"name": "product", "k": "1", "c": ""}
program("function for products", SEMANTIC, MATMUL, M0, {**M0, "k": "2"})
M0 = {"name": "another_product", "k": "1", "c": ""}
program("function for products, commented", NEUTRAL, MATMUL, M0, {**M0, "c": "  # times"})

BUDGET = """
def cost(node):<c>
    return <k>
torch._functorch.config.activation_memory_budget = 0.5
torch._functorch.config.activation_memory_budget_runtime_estimator = cost
GRAD = True
def step(x, y):
    return torch.sin(x @ y) @ y
def expect(x, y):
    return (torch.cos(x @ y) * (torch.ones_like(x) @ y.T)) @ y.T
"""
program("function that estimates", SEMANTIC, BUDGET, {"k": "1.0", "c": ""}, {"k": "2.0", "c": ""})
program("function that estimates, commented", NEUTRAL, BUDGET, {"k": "1.0", "c": ""}, {"k": "1.0", "c": "  # one"})
