"""Entries that verify and are of no use: removed, compiled cold once, and hit again by the next process."""

from __future__ import annotations

import marshal
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.utils import counters  # noqa: E402
from torch._functorch._aot_autograd import autograd_cache  # noqa: E402
from torch._inductor import codecache  # noqa: E402

import kcache  # noqa: E402
from kcache import group  # noqa: E402
from kcache.digest import Key  # noqa: E402
from kcache.hooks import guarded, session  # noqa: E402

A, B = torch.randn(4, 4), torch.randn(4, 4)
BEFORE: list[Any] = []


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y @ y


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """kcache on and not strict, with nothing compiled."""
    monkeypatch.setenv("KCACHE_STRICT", "0")
    forget()
    BEFORE[:] = [kcache.stats()]
    assert kcache.enable()
    yield
    kcache.disable()
    forget()


def forget() -> None:
    torch._dynamo.reset()
    codecache.PyCodeCache.cache_clear()
    counters.clear()


def outcomes(step: Callable[..., Any] = product) -> dict[str, str]:
    """Compile and run `step` as a new process would, check its value; what `aot`, `fx`, `code` and `cpp` counted."""
    forget()
    before = kcache.stats()
    torch.testing.assert_close(torch.compile(step)(A, B), step(A, B))
    assert session.current().cache.flush()
    layers = kcache.stats().since(before).layers
    return {
        layer: " ".join(f"{n} {what}" for what, n in sorted(layers[layer].items()) if what != "bypass")
        for layer in ("aot", "fx", "code", "cpp")
        if layer in layers
    }


def errors() -> list[tuple[str, str]]:
    found = kcache.stats().since(BEFORE[-1]).reasons
    return [(layer, reason) for (layer, what, reason) in found if what == "error"]


def replace(layer: str, change: Callable[[bytes], bytes]) -> None:
    """Put what `change` makes of it in the place of the only entry of `layer`: whole, verified, and another.

    Inductor's own files go, or it would load those.
    """
    shutil.rmtree(codecache.cache_dir(), ignore_errors=True)
    cache = session.current().cache
    assert cache.flush()
    (stored,) = cache.store.scan(layer)
    record = stored.record
    assert record is not None
    value = cache.store.read(record)
    cache.store.delete([stored.id])
    assert cache.put(layer, stored.key, change(value), guards=record.guards, links=record.links)
    assert cache.flush()


def pickled(**changes: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        value = pickle.loads(data)
        for name, by in changes.items():
            setattr(value, name, by(getattr(value, name)))
        return pickle.dumps(value)

    return change


HIT = {"aot": "1 hit", "fx": "1 hit", "code": "1 hit"}


@pytest.mark.parametrize(
    ("layer", "change", "reason"),
    [
        ("aot", lambda data: b"no pickle", "entry does not load"),
        ("aot", pickled(runtime_metadata=lambda it: None), "entry cannot be used"),
        ("fx", lambda data: b"no pickle", "entry does not load"),
        ("fx", pickled(source_code=lambda text: text + "\nraise ValueError('spoiled')\n"), "entry cannot be used"),
        ("fx", pickled(source_code=lambda text: text + "\nthis is no Python\n"), "entry cannot be used"),
        ("code", lambda data: b"no code", "entry does not load"),
        ("code", lambda data: marshal.dumps(compile("1 / 0", "f", "exec")), "entry fails when first used"),
    ],
    ids=["aot pickle", "aot wrap", "fx pickle", "fx module", "fx syntax", "code bytes", "code runs"],
)
def test_an_entry_of_no_use_is_compiled_cold_once_and_replaced(layer, change, reason):
    outcomes()
    assert outcomes() == HIT
    replace(layer, change)
    again = outcomes()
    assert errors() == [(layer, reason)]
    assert again != HIT
    assert outcomes() == HIT
    assert errors() == [(layer, reason)]


def test_what_fx_finds_of_no_use_without_an_aot_entry_does_not_reach_the_program():
    """Stock torch lets the exception through here."""
    outcomes()
    replace("fx", pickled(source_code=lambda text: text + "\nraise ValueError('spoiled')\n"))
    autograd_cache.AOTAutogradCache.clear()
    assert outcomes()["fx"] == "1 error 1 hit 1 stored"
    assert errors() == [("fx", "entry cannot be used")]
    assert outcomes() == HIT


def test_a_graph_whose_first_call_lacks_a_name_is_removed_and_the_next_process_compiles():
    outcomes()
    replace("fx", pickled(source_code=lambda text: text.replace("args.clear()", "args.clear(); of_no_use()")))
    with pytest.raises(NameError, match="of_no_use"):
        outcomes()
    assert errors() == [("fx", "entry fails when first used")]
    assert outcomes()["fx"] == "2 miss 1 stored"  # asked by the aot entry, and by the compile
    assert outcomes() == HIT


def test_an_error_of_the_program_costs_no_entry():
    """An operator of the user's that raises: deeper than the module, so nothing is known against the entry."""

    @torch.library.custom_op("kcache_quarantine::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        if broken:
            raise AttributeError("of the program's own")
        return x.clone()

    fails.register_fake(lambda x: torch.empty_like(x))
    broken = False

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return fails(x @ y)

    outcomes(step)
    assert outcomes(step)["fx"] == "1 hit"
    broken = True
    with pytest.raises(AttributeError, match="of the program's own"):
        outcomes(step)
    broken = False
    assert errors() == []
    assert outcomes(step)["fx"] == "1 hit"


def test_an_error_of_the_machine_costs_no_entry(monkeypatch):
    """A full disk while Inductor's files are written: torch's own miss, and the entry stays."""
    outcomes()
    from torch._inductor.output_code import CompiledFxGraph

    def full(self: Any) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(CompiledFxGraph, "write_to_disk", full)
        outcomes()
    assert errors() == []
    assert outcomes() == HIT


WAVE = """
import torch, kcache
kcache.enable()
def wave(x, y):
    return (x + y).sin() * 3
x, y = torch.ones(4, 4), torch.ones(4, 4)
torch.testing.assert_close(torch.compile(wave)(x, y), wave(x, y))
print([reason for reason in kcache.stats().reasons if reason[1] == "error"])
"""


@pytest.mark.slow
def test_a_shared_object_that_does_not_load_is_built_again():
    """In processes of its own, since one process does not open a shared object of the same path twice."""

    def run() -> str:
        shutil.rmtree(codecache.cache_dir(), ignore_errors=True)
        done = subprocess.run([sys.executable, "-c", WAVE], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run() == "[]"
    replace("cpp", lambda data: b"\x7fELF and nothing more")
    assert run() == "[('cpp', 'error', 'entry does not load')]"
    (stored,) = session.current().cache.store.scan("cpp")
    assert stored.record is not None and stored.record.raw_size > 1000
    assert run() == "[]"


@pytest.mark.parametrize(
    "value", [b"no group", group.pack({"kern.json": b"{"}), group.pack({"other.json": b"{}"})], ids=["bytes", "json", "file"]
)
def test_a_group_of_artifacts_that_triton_could_not_read_is_removed(value):
    triton = pytest.importorskip("kcache.hooks.triton")
    manager = triton.Manager("0" * 64)
    key = triton._key_of(manager.key, "kern.json")
    session.current().cache.put("triton", key, value)
    manager._materialise("kern.json")
    assert errors() == [("triton", "entry does not load")]
    assert manager.get_group("kern.json") in (None, {})
    assert session.current().cache.candidates("triton", key) == []


def test_a_tuning_result_that_is_no_json_is_removed(tmp_path):
    from kcache.hooks import tune

    path = str(tmp_path / f"kernel{tune.SUFFIX}")
    session.current().cache.put("tune", Key.of(tune.parts_of(path)), b"{", guards=tune.PLAIN)
    assert tune.best(path) is None
    assert errors() == [("tune", "entry does not load")]
    tune.keep(path, b'{"num_warps": 4}')
    assert tune.best(path) == b'{"num_warps": 4}'


def test_which_errors_speak_of_the_machine():
    spoken = [MemoryError(), RecursionError(), OSError(28, "No space left"), torch.OutOfMemoryError("CUDA")]
    assert not any(guarded.blames_the_entry(error) for error in spoken)
    assert all(guarded.blames_the_entry(error) for error in [OSError("invalid ELF header"), KeyError("x")])
