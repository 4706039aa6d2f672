"""The seams as a program meets them: full hits, torch's own switches, trouble, and everything put back.

Most graphs here are products alone: Inductor compiles those without a C++ compiler, in a tenth
of a second, and every layer but `cpp` works as for any other graph.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._functorch.config as functorch_config  # noqa: E402
import torch._inductor.compile_fx  # noqa: E402, F811
import torch._inductor.config as inductor_config  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._functorch._aot_autograd import autograd_cache  # noqa: E402
from torch._inductor import async_compile, codecache, cpu_vec_isa, output_code  # noqa: E402
from torch._inductor import utils as inductor_utils  # noqa: E402
from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: E402

import kcache  # noqa: E402
from kcache import hooks  # noqa: E402
from kcache.cache import Cache  # noqa: E402
from kcache.errors import Opaque  # noqa: E402
from kcache.hooks import guarded, session  # noqa: E402

A, B = torch.randn(4, 4), torch.randn(4, 4)
Layers = dict[str, dict[str, int]]
BEFORE: list[Any] = []
"""The process's counts when the test began."""


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y @ y


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """Each test begins with nothing compiled and ends with kcache off."""
    forget()
    BEFORE[:] = [kcache.stats()]
    yield
    kcache.disable()
    forget()


def forget() -> None:
    """Drop what torch keeps in memory, as a new process would begin."""
    torch._dynamo.reset()
    codecache.PyCodeCache.cache_clear()
    counters.clear()


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCACHE_STRICT", "0")


def compiled(step: Callable[..., Any] = product, *inputs: Any, **options: Any) -> Layers:
    """Compile and run `step` as in a new process, check its value, and return what kcache counted meanwhile."""
    forget()
    inputs = inputs or (A, B)
    before = kcache.stats()
    out = torch.compile(step, **options)(*inputs)
    torch.testing.assert_close(out, step(*inputs))
    return kcache.stats().since(before).layers


def flushed() -> int:
    """Number of entries in the store, all that is queued written."""
    cache = session.current().cache
    assert cache.flush()
    return sum(1 for _ in cache.store.scan())


def outcome(layers: Layers, name: str, layer: str = "aot") -> int:
    return layers.get(layer, {}).get(name, 0)


def reasons(name: str) -> list[str]:
    """Reasons counted since this test began."""
    return [reason for (_, what, reason) in kcache.stats().since(BEFORE[-1]).reasons if what == name]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("kcache") and r.levelno >= logging.WARNING]


# --- the store is enough ---

TRAINING = Path(__file__).parent / "programs" / "training.py"


def training(root: Path, run: str, **more: str) -> dict[str, Any]:
    """One run of the training program on the store in `root`, every other cache directory empty."""
    own = {name: str(root / run / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR", "HOME")}
    (root / run / "TMPDIR").mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("KCACHE")}
    env |= {**own, "KCACHE_DIR": str(root / "store"), "KCACHE_STRICT": "1", **more}
    done = subprocess.run(
        [sys.executable, str(TRAINING)], env=env, cwd=root, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def cold_and_warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    root = tmp_path_factory.mktemp("training")
    return training(root, "cold"), training(root, "warm", CXX="/bin/false")


@pytest.mark.slow
def test_a_warm_start_needs_the_store_alone(cold_and_warm: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """With every other cache directory empty and no compiler, values are equal bit for bit and every layer hits."""
    cold, warm = cold_and_warm
    assert cold["close"] and warm["close"]
    assert warm["values"] == cold["values"]
    before, after = cold["kcache"]["layers"], warm["kcache"]["layers"]
    for layer in ("aot", "fx", "cpp", "code"):
        assert before[layer]["miss"] == before[layer]["stored"] > 0
        assert after[layer] == {"hit": before[layer]["miss"]}


@pytest.mark.slow
def test_torchs_counters_tell_of_a_full_hit(cold_and_warm: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """`fxgraph_cache_*` and `autograd_cache_*` count as they do without kcache."""
    cold, warm = cold_and_warm
    assert cold["torch"] == {"fxgraph_cache_miss": 2, "autograd_cache_miss": 1, "autograd_cache_saved": 1}
    assert warm["torch"] == {"fxgraph_cache_hit": 2, "autograd_cache_hit": 1}


@pytest.mark.slow
def test_a_warm_start_starts_no_compiler_and_no_worker(cold_and_warm: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The cold run is seen to start compilers; the warm one asks the configured compiler what it is, and nothing else."""
    cold, warm = cold_and_warm
    assert any("g++" in child or "clang" in child for child in cold["children"])
    others = [c for c in warm["children"] if "'/bin/false', ['/bin/false', '-" not in c]
    assert others == []


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_torchs_counters_equal_those_of_stock(warm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same process, the same graph counts the same with kcache as without it."""

    def counted(folder: str) -> dict[str, int]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
        for _ in range(1 + warm):
            forget()
            torch.testing.assert_close(torch.compile(product)(A, B), product(A, B))
        every = {**counters["inductor"], **counters["aot_autograd"]}
        return {k: v for k, v in every.items() if "cache" in k and "guard" not in k}

    stock = counted("stock")
    assert kcache.enable()
    assert counted("ours") == stock
    assert stock[f"fxgraph_cache_{'hit' if warm else 'miss'}"] == 1


# --- on and off ---

REPLACED: list[tuple[Any, str]] = [
    *((autograd_cache.AOTAutogradCache, n) for n in
      ("iterate_over_candidates", "_write_to_local_cache", "_record_result", "clear", "save", "try_load")),
    *((codecache.FxGraphCache, n) for n in
      ("iterate_over_candidates", "_write_to_local_cache", "_record_result", "clear", "_save_graph", "_check_can_cache",
       "load_with_key")),
    (autograd_cache, "AOTAutogradCachePickler"), (autograd_cache, "autograd_cache_key"), (autograd_cache, "check_node_safe"),
    (codecache, "FxGraphCachePickler"), (codecache, "_reload_python_module"),
    (codecache.CppCodeCache, "load_async"), (codecache.CppCodeCache, "_load_library"),
    (async_compile.AsyncCompile, "wakeup"), (async_compile.AsyncCompile, "use_process_pool"),
    (output_code.CompiledFxGraph, "after_deserialization"), (cpu_vec_isa.VecISA, "check_build"),
    (torch.library.Library, "impl"), (torch._ops.HigherOrderOperator, "cacheable"), (inductor_utils, "fresh_cache"),
]  # fmt: skip


def bindings() -> dict[str, Any]:
    """Every attribute that a seam replaces, raw, and every global of torch and Triton that is bound to one by value."""
    found = {f"{getattr(o, '__name__', o)}.{n}": inspect.getattr_static(o, n) for o, n in REPLACED}
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in ("torch", "triton", "functorch"):
            for each in ("fresh_cache", "autograd_cache_key", "triton_key", "get_ptxas_version", "check_node_safe"):
                if each in vars(module):
                    found[f"{name}.{each}"] = vars(module)[each]
    with contextlib.suppress(ImportError):
        from triton import knobs

        found["knobs.cache.manager_class"] = knobs.cache.manager_class
        found["knobs.cache has one of its own"] = "manager_class" in vars(knobs.cache)
        found["NvidiaTool.from_path"] = inspect.getattr_static(knobs.NvidiaTool, "from_path")
    return found


def test_disable_puts_every_original_back() -> None:
    """After `disable()` each attribute that a seam replaced is the very object that it was, in every module."""
    before = bindings()
    assert kcache.enable()
    during = bindings()
    for owner, name in REPLACED:
        label = f"{getattr(owner, '__name__', owner)}.{name}"
        assert during[label] is not before[label], label
    kcache.disable()
    after = bindings()
    assert after.keys() == before.keys()
    assert [label for label in before if after[label] is not before[label]] == []
    assert session.CURRENT is None


def test_disable_puts_back_what_a_module_took_meanwhile() -> None:
    """A function that a module of torch's bound by value while kcache was on is the original again."""
    before = inductor_utils.fresh_cache
    assert kcache.enable()
    torch._kcache_test = inductor_utils.fresh_cache
    try:
        kcache.disable()
        assert torch._kcache_test is before
    finally:
        del torch._kcache_test


def test_enabling_twice_changes_nothing_and_disabling_twice_neither() -> None:
    """A second `enable()` is True and keeps store and seams; one `disable()` undoes both."""
    before = bindings()
    assert kcache.enable()
    during, store = bindings(), session.current().cache
    assert kcache.enable(dir=store.settings.dir / "other")
    assert all(a is b for a, b in zip(bindings().values(), during.values()))
    assert session.current().cache is store
    kcache.disable()
    kcache.disable()
    assert all(a is b for a, b in zip(bindings().values(), before.values()))


def test_it_can_be_switched_on_again() -> None:
    """Entries of before are hit after `disable()` and a second `enable()`."""
    assert kcache.enable()
    assert outcome(compiled(), "miss") == 1
    kcache.disable()
    assert compiled() == {}
    assert kcache.enable()
    layers = compiled()
    assert outcome(layers, "hit") == outcome(layers, "hit", "fx") == 1
    assert outcome(layers, "miss") == outcome(layers, "miss", "fx") == 0


def test_kcache_0_switches_it_off_silently(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """`KCACHE=0` wins over the program: False, no warning, no store made, nothing replaced."""
    monkeypatch.setenv("KCACHE", "0")
    before = bindings()
    assert kcache.enable() is False
    assert all(a is b for a, b in zip(bindings().values(), before.values()))
    assert warnings(caplog) == []
    assert not Path(os.environ["KCACHE_DIR"]).exists()
    assert compiled() == {}


# --- torch's own switches ---


@contextlib.contextmanager
def disabled_everywhere() -> Iterator[None]:
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


SWITCHES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "force_disable_caches": (disabled_everywhere, ("aot", "fx")),
    "fx_graph_cache": (lambda: inductor_config.patch(fx_graph_cache=False), ("aot", "fx")),
    "enable_autograd_cache": (lambda: functorch_config.patch(enable_autograd_cache=False), ("aot",)),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_torchs_own_switches_turn_layers_off(name: str) -> None:
    """What the user switches off in torch is neither read nor written by kcache, and comes back when switched on."""
    context, off = SWITCHES[name]
    assert kcache.enable()
    with context():
        layers = compiled()
    for layer in off:
        assert outcome(layers, "hit", layer) == outcome(layers, "stored", layer) == 0
    before = {s.record.label or s.id for s in session.current().cache.store.scan()} if flushed() else set()
    assert not [s for s in session.current().cache.store.scan() if s.layer in off], before
    assert outcome(compiled(), "miss") == 1
    assert flushed() > 0
    with context():
        assert outcome(compiled(), "hit") == 0
    assert outcome(compiled(), "hit") == 1


def test_force_disable_caches_touches_no_layer() -> None:
    """With torch's caches all off, kcache asks and stores nothing of a compile at all."""
    assert kcache.enable()
    compiled()
    count = flushed()
    with torch.compiler.config.patch(force_disable_caches=True):
        layers = compiled(lambda x, y: y @ x)
    assert {layer for layer, counts in layers.items() if counts.get("hit") or counts.get("stored")} <= {"host"}
    assert flushed() == count


def test_fresh_cache_neither_reads_nor_writes_the_users_store() -> None:
    """Inside torch's `fresh_cache()` a store of its own is used; the user's is found as it was afterwards."""
    assert kcache.enable()
    assert outcome(compiled(), "miss") == 1
    users = session.current().cache
    before = flushed()
    with torch._inductor.utils.fresh_cache():
        assert session.current().cache is not users
        assert outcome(compiled(), "miss") == 1
        assert outcome(compiled(), "hit") == 1
        assert outcome(compiled(lambda x, y: y @ x), "miss") == 1
    assert session.current().cache is users
    assert flushed() == before
    assert outcome(compiled(), "hit") == 1
    assert outcome(compiled(lambda x, y: y @ x), "miss") == 1


@pytest.mark.parametrize("layer", ["fx", "aot"])
def test_torchs_clear_empties_the_layer(layer: str) -> None:
    """`FxGraphCache.clear()` and `AOTAutogradCache.clear()` remove what they would have removed without kcache."""
    assert kcache.enable()
    compiled()
    assert flushed() > 0
    {"fx": codecache.FxGraphCache, "aot": autograd_cache.AOTAutogradCache}[layer].clear()
    assert [s for s in session.current().cache.store.scan() if s.layer == layer] == []
    assert outcome(compiled(), "miss", layer) >= 1
    assert outcome(compiled(), "hit") == 1


MEGA = """
import sys, json
import torch, kcache
assert kcache.enable()
x, y = torch.arange(16.0).view(4, 4).requires_grad_(), torch.eye(4) * 2
if sys.argv[1] == "load":
    assert torch.compiler.load_cache_artifacts(open(sys.argv[2], "rb").read()) is not None
out = torch.compile(lambda x, y: x @ y @ y)(x, y)
out.backward(torch.ones(4, 4))
assert torch.equal(out, x * 4) and torch.equal(x.grad, torch.full((4, 4), 4.0))
if sys.argv[1] == "save":
    open(sys.argv[2], "wb").write(torch.compiler.save_cache_artifacts()[0])
print(json.dumps(kcache.stats().layers))
"""


@pytest.mark.slow
def test_a_mega_cache_fills_an_empty_store(tmp_path: Path) -> None:
    """Artifacts saved by one process are hits in another with an empty store, forward and backward, values right."""
    found = []
    for what in ("save", "load"):
        folders = {n: str(tmp_path / what / n) for n in ("KCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        done = subprocess.run(
            [sys.executable, "-c", MEGA, what, str(tmp_path / "artifacts")],
            env={**os.environ, **folders}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    saved, loaded = found
    assert outcome(saved, "miss") == 1 and outcome(saved, "miss", "fx") == 2
    assert outcome(loaded, "hit") == 1 and outcome(loaded, "miss") == 0
    assert outcome(loaded, "hit", "fx") == 2 and outcome(loaded, "miss", "fx") == 0


# --- trouble ---


def breaks_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "describe", fails)


def breaks_put(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "put", fails)


def breaks_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "candidates", fails)


def fails(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("made to fail")


BROKEN = {
    "key failed": breaks_describe,
    "save failed": breaks_put,
    "lookup failed": breaks_candidates,
}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("reason", BROKEN)
def test_an_exception_of_kcaches_own_costs_one_warning(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The program's value is right, the reason is counted, and a kind of trouble is warned about once."""
    assert kcache.enable()
    BROKEN[reason](monkeypatch)
    for _ in range(2):
        layers = compiled()
        assert sum(counts.get("error", 0) for counts in layers.values()) > 0
    assert reason in reasons("error")
    assert len([w for w in warnings(caplog) if "made to fail" in w]) == 1, warnings(caplog)


@pytest.mark.parametrize("reason", BROKEN)
def test_when_strict_an_exception_of_kcaches_own_is_raised(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of kcache's goes unseen under `KCACHE_STRICT`, where torch would swallow it too."""
    assert kcache.enable()
    BROKEN[reason](monkeypatch)
    with pytest.raises(Exception, match="made to fail"):
        compiled()


def garbage(layer: str) -> int:
    """Replace every entry of `layer` by bytes that are whole and no pickle; returns how many."""
    assert flushed()
    cache = session.current().cache
    count = 0
    for stored in list(cache.store.scan()):
        if stored.layer == layer:
            key, guards = stored.key, stored.record.guards
            cache.store.delete([stored.id])
            assert cache.put(layer, key, b"no pickle", guards=guards)
            count += 1
    assert cache.flush()
    return count


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("layer", ["aot", "fx", "code"])
def test_an_entry_that_does_not_load_is_a_miss(layer: str, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no entry are counted, warned about once, and the program compiles."""
    assert kcache.enable()
    compiled()
    assert garbage(layer) > 0
    layers = compiled() if layer != "fx" else _without_autograd_cache()
    assert outcome(layers, "error", layer) > 0
    assert reasons("error") == ["entry does not load"]
    assert len(warnings(caplog)) == 1, warnings(caplog)


def _without_autograd_cache() -> Layers:
    autograd_cache.AOTAutogradCache.clear()
    return compiled()


def test_a_bypass_of_torchs_is_neither_an_error_nor_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be followed is a bypass with a named reason, also when strict, and the value is right."""
    name = "sin"

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    assert kcache.enable()
    with inductor_config.patch(post_grad_custom_post_pass=Reading(name)):
        layers = compiled(step)
    assert outcome(layers, "bypass") == 1
    assert outcome(layers, "stored") == 0
    assert any("pass post_grad_custom_post_pass" in reason for reason in reasons("bypass"))
    assert warnings(caplog) == []
    assert issubclass(Opaque, kcache.KcacheError)


class Reading(CustomGraphPass):
    """A pass whose code reads what nothing can follow."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, graph: torch.fx.Graph) -> None:
        eval("graph")

    def uuid(self) -> str:
        return "reading"


SHAPES: dict[str, tuple[str, Any, str]] = {
    "aot": ("save", autograd_cache.AOTAutogradCache, "save"),
    "fx": ("_save_graph", codecache.FxGraphCache, "_save_graph"),
    "cpp": ("_load_library", codecache.CppCodeCache, "_load_library"),
    "code": ("_reload_python_module", codecache, "_reload_python_module"),
    "pool": ("wakeup", async_compile.AsyncCompile, "wakeup"),
}


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("seam", SHAPES)
def test_a_torch_of_another_shape_turns_one_seam_off(
    seam: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A function with other parameters is named in the one warning, its seam stays off, and the program runs."""
    name, owner, attribute = SHAPES[seam]

    def other(*, of_another_release: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(owner, attribute, staticmethod(other) if isinstance(owner, type) else other)
    assert kcache.enable()
    monkeypatch.undo()  # torch itself needs the function to compile
    assert [w for w in warnings(caplog) if name in w and "another shape" in w] == warnings(caplog)
    assert len(warnings(caplog)) == 1
    assert f"seam {seam} off" in reasons("error")
    torch.testing.assert_close(torch.compile(product)(A, B), product(A, B))


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("seam", hooks.SEAMS)
def test_a_seam_that_fails_to_install_leaves_nothing_half_done(
    seam: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a seam raises while it is installed, `enable()` does not raise, says so once, and all can be undone."""
    from importlib import import_module

    from kcache.errors import ShapeError

    def install(patches: Any) -> None:
        raise ShapeError("made to differ")

    before = bindings()
    monkeypatch.setattr(import_module(f"kcache.hooks.{seam}"), "install", install)
    assert kcache.enable()
    assert [w for w in warnings(caplog) if f"{seam} (made to differ)" in w] == warnings(caplog) != []
    compiled()
    kcache.disable()
    assert [label for label, value in bindings().items() if before.get(label, value) is not value] == []


@pytest.mark.usefixtures("lenient")
def test_an_unforeseen_exception_while_installing_does_not_break_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute that no `require` names but that a seam reads turns the seam off like any other."""
    from kcache.hooks import code

    def install(patches: Any) -> None:
        raise AttributeError("gone in this release")

    monkeypatch.setattr(code, "install", install)
    try:
        assert kcache.enable()
    finally:
        kcache.disable()


# --- a directory that cannot be used ---


def a_file(root: Path) -> None:
    root.write_text("mine")


def foreign_files(root: Path) -> None:
    (root / "v1").mkdir(parents=True)
    (root / "v1" / "thesis.txt").write_text("mine")


def read_only(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    root.mkdir()
    root.chmod(0o500)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("make", [a_file, foreign_files, read_only])
def test_a_directory_that_cannot_be_used_is_one_warning(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`enable()` is False, says why once, replaces and deletes nothing, and the program runs."""
    root = tmp_path / "unusable"
    make(root)
    monkeypatch.setenv("KCACHE_DIR", str(root))
    content = {p: p.read_bytes() for p in [root, *root.rglob("*")] if p.is_file()}
    before = bindings()
    assert kcache.enable() is False
    assert len(warnings(caplog)) == 1 and str(root) in warnings(caplog)[0]
    assert all(a is b for a, b in zip(bindings().values(), before.values()))
    assert compiled() == {}
    assert {p: p.read_bytes() for p in [root, *root.rglob("*")] if p.is_file()} == content
    with pytest.raises(kcache.KcacheError):
        kcache.enable(strict=True)


# --- what changes while compiling ---


def switched() -> Any:
    return torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled())


def configured() -> Any:
    inductor_config.max_fusion_size += 1


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "switches": (switched, switched),
    "inductor_config": (configured, lambda: setattr(inductor_config, "max_fusion_size", 64)),
}


@pytest.mark.parametrize("part", CHANGES)
def test_what_changes_between_key_and_save_is_not_saved(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry whose key would name another state than the one it was compiled in is counted and left out."""
    change, back = CHANGES[part]
    assert kcache.enable()
    made = guarded.make_key

    def then_changed(layer: str, *args: Any) -> str:
        key = made(layer, *args)
        if layer == "fx":
            change()
        return key

    before = inductor_config.max_fusion_size
    with monkeypatch.context() as patched:
        patched.setattr(guarded, "make_key", then_changed)
        layers = compiled()
    back() if part == "switches" else setattr(inductor_config, "max_fusion_size", before)
    assert outcome(layers, "skipped", "fx") == 1
    assert any(r.startswith("changed while compiling") and part in r for r in reasons("skipped")), reasons("skipped")
    flushed()
    assert [s for s in session.current().cache.store.scan() if s.layer == "fx"] == []
    assert outcome(compiled(), "hit", "fx") == 0


class Twist(CustomGraphPass):
    """Swaps the operands of every product where `on`, so that a stale backward shows in the gradient."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if self.on and node.target is torch.ops.aten.mm.default:
                node.args = (node.args[1], node.args[0])

    def uuid(self) -> str:
        return "twist"


def gradient(
    passes: tuple[bool, bool], options: bool = False, between: Callable[[], Any] | None = None
) -> torch.Tensor:
    """Gradient of a product, the forward compiled under one pass and the backward under another."""
    forget()
    x = A.clone().requires_grad_()
    if options:
        twist = Twist(passes[0])
        out = torch.compile(torch.mm, options={"post_grad_custom_post_pass": twist})(x, B)
        twist.on = passes[1]
        out.backward(A)
    else:
        with inductor_config.patch(post_grad_custom_post_pass=Twist(passes[0])):
            out = torch.compile(torch.mm)(x, B)
        with inductor_config.patch(post_grad_custom_post_pass=Twist(passes[1])):
            out.backward(A)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("options", [False, True], ids=["config", "options"])
def test_a_pass_changed_between_forward_and_backward_is_not_saved(options: bool) -> None:
    """The backward compiled under another pass is this run's alone: the next process gets the right gradient."""
    assert kcache.enable()
    torch.testing.assert_close(gradient((False, True), options), B.t() @ A)
    before = kcache.stats()
    torch.testing.assert_close(gradient((False, False), options), A @ B.t())
    assert outcome(kcache.stats().since(before).layers, "hit") == 0
    before = kcache.stats()
    torch.testing.assert_close(gradient((False, False), options), A @ B.t())
    assert outcome(kcache.stats().since(before).layers, "hit") == 1


def define_projected(backward: Callable[..., Any]) -> None:
    projected = torch.library.custom_op("lab_hooks::projected", lab_projected, mutates_args=())
    projected.register_fake(lab_projected_fake)
    projected.register_autograd(backward, setup_context=lab_setup_context)


def lab_projected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def lab_projected_fake(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


def lab_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def right(ctx: Any, grad: torch.Tensor) -> Any:
    return grad @ ctx.saved_tensors[0].t(), None


def other(ctx: Any, grad: torch.Tensor) -> Any:
    return grad @ ctx.saved_tensors[0], None


def projected_gradient(between: Callable[[], Any] = lambda: None) -> torch.Tensor:
    forget()
    x = A.clone().requires_grad_()
    out = torch.compile(lambda x, w: torch.ops.lab_hooks.projected(x, w))(x, B)
    between()
    out.backward(A)
    assert x.grad is not None
    return x.grad


def test_an_operators_edited_backward_is_never_stale() -> None:
    """Each backward has an entry of its own, and going back to the first hits the first."""
    assert kcache.enable()
    for backward, expected, hits in ((right, A @ B.t(), 0), (other, A @ B, 0), (right, A @ B.t(), 1)):
        define_projected(backward)
        before = kcache.stats()
        torch.testing.assert_close(projected_gradient(), expected)
        assert outcome(kcache.stats().since(before).layers, "hit") == hits


def test_an_operators_backward_changed_between_forward_and_backward_is_not_saved() -> None:
    """The next process gets the gradient of the backward that it has."""
    assert kcache.enable()
    define_projected(right)
    projected_gradient(lambda: define_projected(other))
    assert any("changed while compiling" in r and "lab_hooks::projected" in r for r in reasons("skipped"))
    torch.testing.assert_close(projected_gradient(), A @ B)
    define_projected(right)
    torch.testing.assert_close(projected_gradient(), A @ B.t())


# --- keys end to end ---


def test_renamed_arguments_hit_also_with_dynamic_shapes() -> None:
    """A graph whose sizes are symbols is hit under other names of its arguments and at other sizes, values right."""

    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    def other(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right

    assert kcache.enable()
    assert outcome(compiled(one, torch.randn(5, 6), torch.randn(6, 7), dynamic=True), "miss") == 1
    for sizes in ((5, 6, 7), (8, 9, 10)):
        layers = compiled(other, torch.randn(sizes[:2]), torch.randn(sizes[1:]), dynamic=True)
        assert outcome(layers, "hit") == 1 and outcome(layers, "miss") == 0


def test_renamed_arguments_run_right_from_the_fx_layer_alone() -> None:
    """With no AOT entry to hit, an FX entry with symbolic strides is found or compiled anew, and its values are right."""

    def one(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x @ y, x.t()

    def other(left: torch.Tensor, right: torch.Tensor) -> Any:
        return left @ right, left.t()

    assert kcache.enable()
    with functorch_config.patch(enable_autograd_cache=False):
        compiled(one, torch.randn(5, 6), torch.randn(6, 7), dynamic=True)
        for step in (one, other):
            layers = compiled(step, torch.randn(5, 6), torch.randn(6, 7), dynamic=True)
            assert outcome(layers, "hit", "fx") + outcome(layers, "miss", "fx") == 1
    assert pickle.loads(pickle.dumps(kcache.stats())).layers == kcache.stats().layers
