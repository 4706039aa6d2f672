"""The canonical text of a graph: what it leaves out, what it keeps apart, and what it collects."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from kcache.errors import Opaque  # noqa: E402
from kcache.graph import canonical, graph_modules, owned_by_torch  # noqa: E402


def leaf(value: Any) -> bytes:
    """Stands in for torch's pickler: the bits of a tensor, the type of anything else."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.tolist()}".encode()
    return f"{type(value).__qualname__}".encode()


def text(gm: Any, **options: Any) -> str:
    return canonical(gm, leaf, **options).text


def dynamo(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """The graph that Dynamo hands to a backend for `function`; nothing is run."""
    seen: list[Any] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        seen.append(gm)
        raise NotImplementedError

    torch._dynamo.reset_code_caches()  # `reset` would empty the side table of kernels
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(function, backend=backend, fullgraph=True, **options)(*inputs)
    return seen[0]


def built(*steps: tuple[Any, tuple[Any, ...]], inputs: tuple[str, ...] = ("a", "b"), meta: Any = None) -> Any:
    """A graph by hand: each step is a target and arguments, where a text names an earlier node `#n` or an input."""
    graph = torch.fx.Graph()
    nodes = {name: graph.placeholder(name) for name in inputs}
    for position, (target, args) in enumerate(steps):
        node = graph.call_function(target, tuple(nodes.get(a, a) if isinstance(a, str) else a for a in args))
        node.meta.update(meta or {})
        nodes[f"#{position}"] = node
    graph.output(node)
    return torch.fx.GraphModule({}, graph)


@pytest.fixture(autouse=True)
def dynamo_forgets() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture
def kernels_traceable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Dynamo put user kernels into a graph on a machine without a GPU; nothing is launched."""
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def triple(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


X = torch.ones(8)


# --- names ---


def test_names_of_locals_and_arguments_are_left_out() -> None:
    """Renaming the caller's arguments and locals does not change the text."""

    def one(x: Any, y: Any) -> Any:
        total = x.sin() + y
        return total * 2

    def other(left: Any, right: Any) -> Any:
        something = left.sin() + right
        return something * 2

    first, second = dynamo(one, X, X + 1), dynamo(other, X, X + 1)
    assert [n.name for n in first.graph.nodes] != [n.name for n in second.graph.nodes]
    assert text(first) == text(second)
    assert text(first, keep_names=True) != text(second, keep_names=True)


def test_names_of_held_tensors_are_left_out_and_their_values_are_not() -> None:
    """A tensor that the graph holds counts by value, under whatever attribute it hangs."""

    def holding(name: str, value: Any) -> Any:
        graph = torch.fx.Graph()
        graph.output(graph.call_function(torch.neg, (graph.get_attr(name),)))
        return torch.fx.GraphModule({name: value}, graph)

    assert text(holding("weight", X)) == text(holding("bias", X.clone()))
    assert text(holding("weight", X)) != text(holding("weight", X + 1))


def test_a_missing_attribute_is_opaque() -> None:
    """A graph that names what it does not have is refused with that name."""
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("weight"))
    gm = torch.fx.GraphModule({"weight": X}, graph)
    del gm.weight
    with pytest.raises(Opaque, match="weight"):
        text(gm)


# --- what differs ---

DIFFERENT = {
    "operands": (built((torch.sub, ("a", "b"))), built((torch.sub, ("b", "a")))),
    "int and float": (built((torch.add, ("a", 1))), built((torch.add, ("a", 1.0)))),
    "int and bool": (built((torch.add, ("a", 1))), built((torch.add, ("a", True)))),
    "int and text": (built((torch.add, ("a", 1))), built((torch.add, ("a", "1")))),
    "signed zero": (built((torch.add, ("a", 0.0))), built((torch.add, ("a", -0.0)))),
    "list and tuple": (built((torch.reshape, ("a", [1]))), built((torch.reshape, ("a", (1,))))),
    "target": (built((torch.sin, ("a",))), built((torch.cos, ("a",)))),
    "dtype": (built((torch.sum, ("a", torch.int8))), built((torch.sum, ("a", torch.int16)))),
    "dtype and its name": (
        built((torch.sum, ("a", torch.int8))),
        built((torch.sum, ("a", "dtype:torch.int8"))),
    ),
    "none": (built((torch.clamp, ("a", None, 1))), built((torch.clamp, ("a", 1, None)))),
    "slice": (
        built((operator.getitem, ("a", slice(1, None)))),
        built((operator.getitem, ("a", slice(None, 1)))),
    ),
    "overload": (
        built((torch.ops.aten.add.Tensor, ("a", "b"))),
        built((torch.ops.aten.add.Scalar, ("a", "b"))),
    ),
    "order": (
        built((torch.sin, ("a",)), (torch.cos, ("b",)), (torch.add, ("#0", "#1"))),
        built((torch.cos, ("b",)), (torch.sin, ("a",)), (torch.sub, ("#1", "#0"))),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_graphs_have_different_texts(name: str) -> None:
    """Two graphs that mean different things never share a text."""
    one, other = DIFFERENT[name]
    assert text(one) != text(other)


@pytest.mark.parametrize(
    "meta",
    [
        {"custom": {"fallback_to_eager": True}},
        {"custom": {"stream": 1}},
        {"recompute": 1},
        {"partitioner_tag": "must_be_in_backward"},
    ],
    ids=str,
)
def test_metadata_that_passes_read_is_in_the_text(meta: dict[str, Any]) -> None:
    """An annotation that changes generated code changes the text; one that does not, does not."""
    plain = text(built((torch.sin, ("a",))))
    assert text(built((torch.sin, ("a",)), meta=meta)) != plain
    assert text(built((torch.sin, ("a",)), meta={"stack_trace": "elsewhere", "nn_module_stack": {"a": 1}})) == plain


def test_annotate_reaches_the_text() -> None:
    """What `torch.fx.traceback.annotate` says of a region is in the text."""
    import torch.fx.traceback as traceback

    def annotated(value: int) -> Callable[..., Any]:
        def function(x: Any) -> Any:
            with traceback.annotate({"fallback_to_eager": value}):
                return x.sin()

        return function

    with traceback.preserve_node_meta():
        graphs = [torch.fx.symbolic_trace(annotated(v)) for v in (0, 1, 1)]
    texts = [text(g) for g in graphs]
    assert texts[1] == texts[2]
    assert texts[0] != texts[1]


# --- nested graphs ---


def test_bodies_of_checkpoint_cond_and_autograd_function_are_in_the_text() -> None:
    """A changed body of a nested region changes the text, a renamed local in it does not."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 3

    class Renamed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    def sine(x: Any) -> Any:
        return x.sin() * 2

    def sine_renamed(y: Any) -> Any:
        return y.sin() * 2

    def cosine(x: Any) -> Any:
        return x.cos() * 2

    def checkpointed(body: Any) -> Callable[..., Any]:
        return lambda x: checkpoint(body, x, use_reentrant=False)

    def chosen(body: Any) -> Callable[..., Any]:
        return lambda x: torch.cond(x.sum() > 0, body, lambda x: x + 1, (x,))

    x = X.clone().requires_grad_()
    cases = [
        (checkpointed(sine), checkpointed(sine_renamed), checkpointed(cosine)),
        (chosen(sine), chosen(sine_renamed), chosen(cosine)),
        (Scale.apply, Renamed.apply, Wrong.apply),
    ]
    for one, same, other in cases:
        graphs = [dynamo(lambda x, f=f: f(x) + 1, x) for f in (one, same, other)]
        assert len(list(graph_modules(graphs[0]))) > 1
        texts = [text(g) for g in graphs]
        assert texts[0] == texts[1]
        assert texts[0] != texts[2]


def test_a_graph_module_used_twice_is_printed_once() -> None:
    """Two calls of one module and two calls of equal modules are told apart from calls of different modules."""
    body = built((torch.sin, ("a",)), inputs=("a",))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_module("body", (x,))
    graph.output(graph.call_module("body", (first,)))
    gm = torch.fx.GraphModule({"body": body}, graph)
    assert text(gm).count(".sin(") == 1
    assert text(gm).count("graph1(") == 2


# --- user kernels ---


def launching(*kernels: Any, block: int = 8, n: int = 8) -> Callable[..., Any]:
    """A function that launches the kernels one after the other on fresh outputs."""

    def function(x: Any) -> Any:
        outs = []
        for kernel in kernels:
            out = torch.empty_like(x)
            kernel[(1,)](x, out, n, BLOCK=block)
            outs.append(out)
        return outs

    return function


def side_table() -> Any:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table


def kernel_indices(gm: Any) -> list[int]:
    return [n.kwargs["kernel_idx"] for n in gm.graph.nodes if "kernel_idx" in n.kwargs]


@pytest.mark.usefixtures("kernels_traceable")
def test_the_order_in_which_kernels_are_registered_is_left_out() -> None:
    """A kernel has the same text whatever index Dynamo's side table gave it."""
    side_table().reset_table()
    first = dynamo(launching(double), X)
    once = text(first)
    side_table().reset_table()
    dynamo(launching(triple, block=4), X)
    second = dynamo(launching(double), X)
    assert kernel_indices(first) != kernel_indices(second)
    assert text(second) == once
    assert canonical(second, leaf).kernels == [double]


@pytest.mark.usefixtures("kernels_traceable")
def test_swapped_kernels_other_kernels_and_other_constants_differ() -> None:
    """Which kernel stands at which node, and with which constants, is in the text."""
    side_table().reset_table()
    graphs = [
        dynamo(launching(double, triple), X),
        dynamo(launching(triple, double), X),
        dynamo(launching(double, double), X),
        dynamo(launching(double, triple, block=16), X),
        dynamo(launching(double, triple, n=7), X),
    ]
    texts = [text(g) for g in graphs]
    assert len(set(texts)) == len(texts)
    assert canonical(graphs[0], leaf).kernels == [double, triple]


@pytest.mark.usefixtures("kernels_traceable")
def test_a_kernel_in_a_nested_graph_is_replaced_there() -> None:
    """Inside an `autograd.Function` the side table's index does not reach the text either."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            out = torch.empty_like(x)
            double[(1,)](x, out, 8, BLOCK=8)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    x = X.clone().requires_grad_()
    side_table().reset_table()
    once = text(dynamo(lambda x: Double.apply(x) + 1, x))
    side_table().reset_table()
    dynamo(launching(triple, block=4), X)
    found = canonical(dynamo(lambda x: Double.apply(x) + 1, x), leaf)
    assert found.text == once
    assert found.kernels == [double]


def test_a_users_argument_called_kernel_idx_stays() -> None:
    """Only nodes of the kernel wrappers are rewritten, so a user's `kernel_idx` is an ordinary number."""

    def graph(value: int) -> Any:
        made = torch.fx.Graph()
        made.output(made.call_function(pick, (made.placeholder("x"),), {"kernel_idx": value}))
        return torch.fx.GraphModule({}, made)

    assert "kernel_idx=0" in text(graph(0))
    assert text(graph(0)) != text(graph(1))


def pick(x: Any, kernel_idx: int = 0) -> Any:
    return x[kernel_idx]


# --- what is collected ---


def test_user_functions_and_operators_are_collected_and_torchs_are_not() -> None:
    """Python outside torch and operators outside torch's namespaces come back in the lists."""
    with torch.library._scoped_library("lab_graph", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        twice = torch.ops.lab_graph.twice.default
        found = canonical(built((twice, ("a",)), (pick, ("#0",)), (torch.sin, ("#1",))), leaf)
        assert found.operators == [twice]
        assert found.functions == [pick]
        assert "lab_graph.twice.default" in found.text


def test_a_function_that_cannot_be_followed_is_opaque() -> None:
    """A target whose code reads what nothing can follow is refused, not printed by name."""

    def reads(x: Any) -> Any:
        return eval("x")

    with pytest.raises(Opaque):
        text(built((reads, ("a",))))


def test_ownership_is_decided_from_the_object() -> None:
    """A user's function put under torch's name is not torch's, nor is one that claims torch's module."""

    def mine(x: Any) -> Any:
        return x + 1

    assert owned_by_torch(torch.sin)
    assert owned_by_torch(torch.nn.functional.relu)
    assert owned_by_torch(operator.add)
    assert not owned_by_torch(mine)
    mine.__module__, mine.__qualname__ = "torch", "sin"
    assert not owned_by_torch(mine)


def test_a_users_wrapper_of_a_torch_function_is_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`functools.wraps` and an assignment give a function torch's name and place; its file says whose it is."""
    stock = torch.nn.functional.relu

    @functools.wraps(stock)
    def relu(*args: Any, **kwargs: Any) -> Any:
        return stock(*args, **kwargs) + 1

    monkeypatch.setattr(torch.nn.functional, "relu", relu)
    assert not owned_by_torch(relu)


def test_a_method_descriptor_is_a_target_like_any_other() -> None:
    """A graph that calls `torch.Tensor.sin` has a text, and another method another one."""
    assert text(built((torch.Tensor.sin, ("a",)))) != text(built((torch.Tensor.cos, ("a",))))
