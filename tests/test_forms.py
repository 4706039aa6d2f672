"""Graphs that torch refuses to cache and kcache keys: hit in a second process, and never stale after an edit."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.utils import counters  # noqa: E402

import kcache  # noqa: E402
from kcache.hooks import extern, lift  # noqa: E402

PROGRAM = Path(__file__).parent / "programs" / "forms.py"
EDITS = (
    ("    return a @ a\n", "    return a @ a @ a\n"),
    ("    return a @ a\n", "    return a @ a  # a comment\n"),
    ("BIAS = 2", "BIAS = 3"),
    ("torch.ops.aten.mm.default]", "torch.ops.aten.sin.default]"),
)
FORMS = (
    "selective", "function", "autocast", "cond", "while_loop", "scan", "map", "associative_scan", "invoke_subgraph",
    "flex_attention", "passed",
)  # fmt: skip
Reports = dict[str, dict[str, Any]]


def run(root: Path, name: str, *edits: tuple[str, str]) -> Reports:
    """The program, edited, in a process of its own on the store in `root`; every other cache directory is empty."""
    text = PROGRAM.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    folder = root / name
    folder.mkdir()
    (folder / "forms.py").write_text(text)
    own = {n: str(folder / n.lower()) for n in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    env = {k: v for k, v in os.environ.items() if not k.startswith("KCACHE")}
    env |= {**own, "KCACHE_DIR": str(root / "store"), "KCACHE_STRICT": "1"}
    command = [sys.executable, str(folder / "forms.py")]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {report["form"]: report for report in found}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reports]:
    """Cold, warm from a file with another comment, and after edits of `body`, of a constant and of a policy."""
    root = tmp_path_factory.mktemp("forms")
    body, comment, constant, policy = EDITS
    return {
        "cold": run(root, "cold"),
        "warm": run(root, "warm", comment),
        "edited": run(root, "edited", body, constant, policy),
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_torch_refuses_hits_in_a_second_process(form: str, runs: dict[str, Reports]) -> None:
    """Every layer hits, nothing is bypassed, and value and gradient are equal bit for bit."""
    cold, warm = runs["cold"][form], runs["warm"][form]
    assert cold["right"] and warm["right"]
    assert cold["layers"]["aot"] == {"miss": 1, "stored": 1}
    assert warm["layers"]["aot"] == {"hit": 1}
    assert warm["layers"]["fx"] == {"hit": cold["layers"]["fx"]["miss"]}
    assert warm["value"] == cold["value"]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_an_edit_of_the_users_code_is_never_stale(form: str, runs: dict[str, Reports]) -> None:
    """A miss, and the value of the edited program."""
    cold, edited = runs["cold"][form], runs["edited"][form]
    assert edited["right"]
    assert edited["layers"]["aot"] == {"miss": 1, "stored": 1}
    assert edited["value"] != cold["value"]


# --- in this process ---


@pytest.fixture
def on() -> Iterator[None]:
    """kcache switched on, nothing compiled yet."""
    torch._dynamo.reset()
    counters.clear()
    assert kcache.enable()
    yield
    kcache.disable()
    torch._dynamo.reset()


def counted(name: str) -> int:
    return counters["aot_autograd"][f"autograd_cache_{name}"]


def test_each_case_of_specialize_on_has_an_entry_of_its_own(on: None) -> None:
    """Torch compiles the graph once for each case, under assumptions that its key does not name."""
    inputs = [torch.randn(n) for n in (5, 8, 16)]
    torch._dynamo.mark_dynamic(inputs[0], 0, specialize_on=[lambda n: n == 8, lambda n: n == 16])
    product = torch.compile(lambda x: x * 5)
    for hits in (0, 3):
        for each in inputs:
            torch.testing.assert_close(product(each), each * 5)
        assert (counted("miss"), counted("hit")) == (3, hits)
        torch._dynamo.reset()


def unfollowed(graph: Any) -> None:
    """A pass whose closure cannot be followed."""
    open("/dev/null").close()


def followed(x: Any) -> Any:
    """A function whose closure can be followed."""
    return x * 2


def undecided(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return eval("torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE")


def test_a_pass_that_cannot_be_followed_is_torchs_own_bypass(on: None) -> None:
    """The program runs, the pass runs, and no entry is made."""
    x = torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(lambda x: x @ x, options={"post_grad_custom_post_pass": unfollowed})(x), x @ x)
    assert (counted("miss"), counted("bypass")) == (0, 1)


def test_a_context_function_that_cannot_be_followed_is_a_bypass_by_name(on: None) -> None:
    """The reason names the function; a hash that the user promises for it is believed."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    before, x = kcache.stats(), torch.randn(4, 4)
    for promised, expected in ((None, (0, 1)), ("one", (1, 1)), ("two", (2, 1))):
        contexts = functools.partial(create_selective_checkpoint_contexts, lambda *a, **k: undecided(*a, **k))
        if promised:
            contexts.cache_hash = promised
        torch._dynamo.reset()
        torch.compile(lambda x: checkpoint(torch.mm, x, x, use_reentrant=False, context_fn=contexts))(x)  # noqa: B023
        assert (counted("miss"), counted("bypass")) == expected
    assert any("undecided" in reason for _, what, reason in kcache.stats().since(before).reasons if what == "bypass")


def test_an_object_of_torchs_in_a_graph_is_not_taken_for_a_function(on: None) -> None:
    """Compiled autograd puts instances of its own into graphs; what they call is in no text."""
    from torch._dynamo import compiled_autograd

    assert not lift._function_is_covered(compiled_autograd.Op("validate_outputs", torch.mm, False))
    assert not lift._function_is_covered(unfollowed)
    assert lift._function_is_covered(followed)


def test_code_that_calls_what_has_a_name_in_this_process_only_is_not_stored(on: None) -> None:
    """Inductor's own functions are there in every process, and what is in `external_matmul` comes back by itself."""
    from torch._inductor import config, select_algorithm

    def only_here(a: Any, b: Any, *, out: Any) -> None:
        torch.mm(b, a, out=out)

    select_algorithm.ExternKernelChoice(only_here)
    try:
        assert extern.unsaid("def call(args):\n    extern_kernels.only_here(a, b, out=c)") == "only_here"
        assert extern.unsaid("extern_kernels.mm(a, b, out=c)  # only_here") == ""
        with config.patch(external_matmul=[only_here]):
            assert extern.unsaid("extern_kernels.only_here(a, b, out=c)") == ""
        before, x = kcache.stats(), torch.eye(4)

        lowering = torch._inductor.lowering.lowerings[torch.ops.aten.mm.default]

        def lower(a: Any, b: Any, *, layout: Any = None) -> Any:
            from torch._inductor.kernel.mm import mm_args
            from torch._inductor.select_algorithm import ExternKernelChoice

            choice = ExternKernelChoice.lookup("only_here")
            _, _, _, layout, a, b = mm_args(a, b, layout=layout)
            return choice.bind((a, b), layout).output_node()

        torch._inductor.lowering.lowerings[torch.ops.aten.mm.default] = lower
        try:
            torch.testing.assert_close(torch.compile(lambda a: a @ (a * 2))(x), x * 2)
        finally:
            torch._inductor.lowering.lowerings[torch.ops.aten.mm.default] = lowering
        reasons = [reason for layer, what, reason in kcache.stats().since(before).reasons if what == "skipped"]
        assert any("only_here" in reason for reason in reasons), kcache.stats().since(before).reasons
    finally:
        del select_algorithm.extern_kernels.only_here


def test_torchs_answer_is_its_own_while_no_key_is_made(on: None) -> None:
    """Outside of key making, operators and functions are as cacheable as torch says."""
    operator = torch.ops.higher_order.cond
    assert not operator.cacheable()
    with lift.lifted():
        assert operator.cacheable()
    assert not operator.cacheable()
