"""`kcache.explain()`: a miss names what differs from the nearest stored entry, a bypass the name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcache import datafile, recent, rows, why
from kcache.counters import Stats
from kcache.diff import differences
from kcache.digest import Key, Part
from kcache.draft import Draft
from kcache.recent import KEPT
from kcache.store import Store


def parts(**values: str) -> list[Part]:
    return [Part.of(name.replace("_", " "), value) for name, value in values.items()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "s")
    yield opened
    opened.close()


def put(store: Store, *lists: list[Part]) -> None:
    assert store.write([Draft("fx", Key.of(each), b"v", parts=each) for each in lists]) == [""] * len(lists)


def test_the_entry_with_most_equal_parts_is_nearest(store: Store) -> None:
    far, near = parts(graph="a", config="x", device="x"), parts(graph="a", config="1", device="1")
    put(store, near, far)
    asked = parts(graph="a", config="1", device="2")
    found = why.nearest(store, Stats(), "fx", Key.of(asked), asked)
    assert found.against == Key.of(near)
    assert [d.chain for d in found.differs] == [("device",)]


def test_code_is_named_before_what_is_made_of_it(store: Store) -> None:
    put(store, parts(config="1", graph="a", kernel_0_norm="1", operator_gone="1"))
    asked = parts(config="2", graph="b", kernel_0_norm="2", operator_new="1")
    found = why.nearest(store, Stats(), "fx", Key.of(asked), asked)
    assert [d.chain[0] for d in found.differs] == ["kernel norm", "graph", "config", "operator new", "operator gone"]


def test_an_entry_of_the_same_kernel_is_found_behind_many_others(store: Store) -> None:
    """The index keeps few keys a row, and has a row for each kernel's name."""
    old = parts(graph="g", kernel_0_norm="1")
    put(store, old, *[parts(graph=f"other {n}") for n in range(2 * KEPT)])
    asked = parts(graph="h", kernel_0_norm="2")
    assert why.nearest(store, Stats(), "fx", Key.of(asked), asked).against == Key.of(old)


def test_a_removed_entry_is_not_compared_with(store: Store) -> None:
    old = parts(graph="g")
    put(store, old)
    assert store.delete([stored.id for stored in store.scan()]) == 1
    assert store.like("fx", old) == []
    found = why.nearest(store, Stats(), "fx", None, old)
    assert found.against is None and "no entry" in found.line


def test_guards_that_do_not_hold_are_the_reason(store: Store) -> None:
    old = parts(graph="g")
    put(store, old)
    assert "guards" in why.nearest(store, Stats(), "fx", Key.of(old), old).line


def test_a_damaged_part_list_is_passed_over_and_counted(store: Store) -> None:
    near, far = parts(graph="a", config="1"), parts(graph="a", config="x")
    put(store, near, far)
    row = b"fx\0" + Key.of(near).raw
    store.swap("parts", row, store.fetch("parts", row), b"KCP1 nonsense")
    stats, asked = Stats(), parts(graph="a", config="1", more="1")
    assert why.nearest(store, stats, "fx", Key.of(asked), asked).against == Key.of(far)
    assert stats.snapshot().reasons == {("fx", "damaged", "parts: truncated"): 1}


def test_a_damaged_text_differs_by_name_and_is_counted(store: Store) -> None:
    old, new = ([Part.of("graph", text * 400, readable=True)] for text in ("a", "b"))
    put(store, old)
    row = old[0].digest.raw + bytes(4)
    store.swap("blobs", row, store.fetch("blobs", row), b"nonsense")
    stats = Stats()
    assert [str(d) for d in why.nearest(store, stats, "fx", Key.of(new), new).differs] == ["graph differs"]
    assert stats.snapshot().total("damaged") == 1


def test_a_store_without_the_index_of_the_newest_is_read_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As version 1 was before it had that table: nothing to compare with, and no error."""
    old = parts(graph="g")
    with monkeypatch.context() as before:
        before.setattr(datafile, "TABLES", tuple(name for name in rows.TABLES if name != "recent"))
        before.setattr(recent, "note", lambda *_: None)
        opened = Store.open(tmp_path / "s")
        put(opened, old)
        opened.close()
    reading = Store.open(tmp_path / "s", readonly=True)
    asked = parts(graph="h")
    assert reading.read(reading.variants("fx", Key.of(old))[0][1]) == b"v"
    assert why.nearest(reading, Stats(), "fx", Key.of(asked), asked).reason == why.NOTHING
    assert reading.live_bytes() > 0
    reading.close()
    writing = Store.open(tmp_path / "s")
    put(writing, asked)
    assert writing.like("fx", asked) == [Key.of(asked)]
    assert writing.delete([stored.id for stored in writing.scan()]) == 2
    writing.close()


def test_the_journal_is_bounded() -> None:
    journal = why.Journal(limit=2)
    for n in range(3):
        journal.add(why.Explained("fx", "bypass", reason=str(n)))
    assert [each.reason for each in journal.report()] == ["1", "2"]
    assert str(why.Journal().report()) == "No miss and no bypass."


# --- real compiles ---

BACKWARD = """
import torch
SLOPE = {slope}
@torch.library.custom_op("explained::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x @ x
@square.register_fake
def _(x):
    return torch.empty_like(x)
def backward(ctx, grad):
    return {body}
square.register_autograd(backward)
"""


def test_an_edited_constant_of_a_backward_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The chain ends at the constant, in `explain()` and in one line of the log."""
    torch = pytest.importorskip("torch")
    import kcache
    from kcache.hooks import session

    def run(slope: float, body: str = "grad * SLOPE") -> Any:
        torch._dynamo.reset()
        space: dict[str, Any] = {"__name__": "explained"}
        exec(BACKWARD.format(slope=slope, body=body), space)
        x = torch.ones(4, 4, requires_grad=True)
        torch.compile(lambda x: space["square"](x))(x).sum().backward()
        return x.grad

    kcache.enable()
    try:
        assert torch.equal(run(2.0), torch.full((4, 4), 2.0))
        assert session.current().cache.flush()
        before = len(kcache.explain())
        with caplog.at_level(logging.INFO, logger="kcache"):
            assert torch.equal(run(3.0), torch.full((4, 4), 3.0))
        missed = [each for each in kcache.explain()[before:] if each.layer == "aot"]
        assert [str(d) for d in missed[0].differs] == [
            "operator explained::square backward_fn → function backward → constant SLOPE: 2.0 → 3.0"
        ]
        assert session.current().cache.flush()
        assert torch.equal(run(3.0, "grad * SLOPE + 1"), torch.full((4, 4), 4.0))
        last = [each for each in kcache.explain() if each.layer == "aot"][-1]
        assert [d.chain[-2:] for d in last.differs] == [("function backward", "code")]
        assert any("constant SLOPE: 2.0 → 3.0" in record.getMessage() for record in caplog.records)
    finally:
        kcache.disable()


def explained(layer: str) -> list[why.Explained]:
    import kcache

    return [each for each in kcache.explain() if each.layer == layer]


@pytest.fixture
def enabled() -> Iterator[None]:
    """kcache on, and nothing explained yet."""
    pytest.importorskip("torch")
    import kcache

    kcache.enable()
    why.CURRENT.forget()
    yield
    kcache.disable()


def test_a_kernel_that_is_launched_by_hand_is_named_down_to_the_constant(enabled: None, tmp_path: Path) -> None:
    """Triton's layer: the closure, the constants and the options are parts, and Triton's hash is not."""
    pytest.importorskip("triton")
    from kcache.hooks import session
    from tests.test_build import compiled
    from tests.test_link import kern, program

    helper = "EPS = tl.constexpr({})\n@triton.jit\ndef f(x):\n    return x * EPS\n"
    old = program(tmp_path / "old", {"kern.py": kern("f(x)", helper.format("1e-5"))})
    new = program(tmp_path / "new", {"kern.py": kern("f(x)", helper.format("1e-6"))})
    compiled(old)
    assert [str(each.differs) + each.reason for each in explained("triton")] == ["()" + why.NOTHING]
    for kernel, options, expected in (
        (new, {}, "kernel kern → helper f → constant EPS: constexpr(1e-05) → constexpr(1e-06)"),
        (new, {"block": 32}, "constants → BLOCK: 64 → 32"),
        (new, {"block": 32, "num_stages": 5}, "options → num_stages: 3 → 5"),
    ):
        assert session.current().cache.flush()
        compiled(kernel, **options)
        assert [str(each) for each in explained("triton")[-1].differs] == [expected]
        assert explained("triton")[-1].label == "kern"


def test_the_c_plus_plus_and_the_python_that_inductor_prints_have_parts(enabled: None) -> None:
    import torch

    from kcache.hooks import session

    x = torch.ones(64)
    for factor in (2.0, 3.0):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(lambda x: x * factor)(x), x * factor)  # noqa: B023
        assert session.current().cache.flush()
    found = explained("cpp")[-1]
    assert [each.chain[0] for each in found.differs] == ["source"]
    assert "2.0" in found.differs[0].before and "3.0" in found.differs[0].after
    assert [each.chain for each in explained("code")[-1].differs] == [("text",)]


def test_a_tuning_result_of_another_device_is_named(enabled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from kcache.hooks import session, tune

    def on(name: str) -> dict[str, Any]:
        return {"name": name, "multiprocessors": 132}

    monkeypatch.setattr(tune, "device", lambda: on("H100"))
    tune.keep("/x/abc.best_config", b"{}")
    assert tune.best("/elsewhere/abc.best_config") == b"{}"
    assert session.current().cache.flush()
    monkeypatch.setattr(tune, "device", lambda: on("H200"))
    assert tune.best("/x/abc.best_config") is None
    assert [str(each) for each in explained("tune")[-1].differs] == ["device → name: 'H100' → 'H200'"]


def test_what_torch_itself_refuses_is_listed_with_function_and_name(enabled: None) -> None:
    """A higher-order operator that neither of torch's caches takes: the reason is torch's, the place the program's."""
    import torch
    from torch._dynamo.utils import counters
    from torch._higher_order_ops.foreach_map import foreach_map

    import kcache

    def step(x: Any) -> Any:
        return foreach_map(torch.add, [x], [x])[0]

    x = torch.ones(8)
    before = kcache.stats().bypasses
    counters.clear()
    assert torch.equal(torch.compile(step, fullgraph=True)(x), x + x)
    assert counters["aot_autograd"]["autograd_cache_bypass"] == counters["inductor"]["fxgraph_cache_bypass"] == 1
    for layer in ("aot", "fx"):
        (found,) = explained(layer)
        line = step.__code__.co_firstlineno + 1
        assert found.line.startswith(f"{layer} bypass: step (test_explain.py:{line}): foreach_map: ")
        assert "HigherOrderOperator" in found.line or "Unsupported call_function" in found.line
    assert kcache.stats().bypasses == before + 2


def test_a_setting_that_torch_refuses_is_listed(enabled: None) -> None:
    import torch

    with torch._inductor.config.patch({"aot_inductor.use_runtime_constant_folding": True}):
        torch.compile(lambda x: x + 1)(torch.ones(8))
    assert [(each.layer, each.outcome) for each in why.CURRENT.report()][:2] == [("aot", "bypass"), ("fx", "bypass")]
    assert "Runtime constant folding" in explained("fx")[0].reason


def test_a_function_in_the_graph_that_cannot_be_followed_is_named_once(enabled: None) -> None:
    """kcache's own reason stands in place of torch's, which shows an address and not the name."""
    import torch

    @torch._dynamo.allow_in_graph
    def reading(x: Any) -> Any:
        return x * eval("2")

    x = torch.ones(8)
    assert torch.equal(torch.compile(lambda x: reading(x))(x), x * 2)
    (found,) = explained("aot")
    assert found.reason.startswith(
        "test_a_function_in_the_graph_that_cannot_be_followed_is_named_once.<locals>.reading: eval"
    )


def test_an_entry_that_cannot_be_set_up_is_listed(enabled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch takes whatever goes wrong between finding an entry and running it for a bypass, and says so to nobody."""
    import torch
    from torch._functorch._aot_autograd.runtime_wrappers import FunctionalizedRngRuntimeWrapper

    from kcache.hooks import session

    def step(x: Any) -> Any:
        return x + 1

    torch.compile(step)(torch.ones(8))
    assert session.current().cache.flush()
    torch._dynamo.reset()

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("no such compiler")

    monkeypatch.setattr(FunctionalizedRngRuntimeWrapper, "post_compile", broken)
    with pytest.raises(Exception, match="no such compiler"):
        torch.compile(step)(torch.ones(8))
    assert explained("aot")[-1].line == "aot bypass: OSError: no such compiler"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x[:, :4].contiguous(), ["shape: (8, 8) → (8, 4)", "stride: (8, 1) → (4, 1)"]),
        (lambda x: x.T, ["stride: (8, 1) → (1, 8)"]),
        (lambda x: x.double(), ["dtype: torch.float32 → torch.float64"]),
        (lambda x: x.clone().requires_grad_(), ["requires_grad: False → True"]),
    ],
)
def test_the_input_that_differs_is_named(change: Any, expected: list[str]) -> None:
    torch = pytest.importorskip("torch")
    from kcache.hooks.describe import inputs_part

    x = torch.ones(8, 8)
    before, after = (
        inputs_part([3, each], [3, each], lambda t: f"{t.shape}{t.stride()}{t.dtype}{t.requires_grad}".encode())
        for each in (x, change(x))
    )
    assert [str(each) for each in differences([before], [after])] == [
        f"example_inputs → input[1] → {each}" for each in expected
    ]


def test_a_setting_of_one_compile_is_named_with_its_values(enabled: None) -> None:
    import torch

    from kcache.hooks import session

    def step(x: Any) -> Any:
        return x.sum()

    for grad, size in ((True, 8), (False, 4)):
        torch._dynamo.reset()
        with torch.set_grad_enabled(grad):
            torch.compile(step, dynamic=False)(torch.ones(size))
        assert session.current().cache.flush()
    said = [str(each) for each in explained("aot")[-1].differs]
    assert "grad_enabled: True → False" in said
    assert "example_inputs → input[0] → shape: (8,) → (4,)" in said
