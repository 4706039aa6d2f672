"""`kcache show` and `kcache explain`: an entry as text, found by the first digits of its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kcache import listing, why
from kcache.counters import Stats
from kcache.digest import Digest, Key, Part
from kcache.draft import Draft
from kcache.store import Store

main = pytest.importorskip("kcache_cli.main", reason="kcache is not installed (pip install -e .)")

KERNEL, TENSOR = Digest.of(b"kernel"), Digest.of(b"tensor")
GRAPH = f"graph0 {{\n%0 = call_function wrap(kernel_idx=kernel:{KERNEL.hex})\n%1 = get_attr tensor:{TENSOR.hex}\n}}"
INPUTS = listing.settings([("input[0]", TENSOR, listing.fields({"shape": (8,), "device": "cpu"}))])
FX = [
    Part.of("example_inputs", INPUTS, readable=True),
    Part.of("graph", GRAPH, readable=True),
    Part("kernel 0 rms_norm", KERNEL, b"[]"),
    Part.of("inductor_config", f"debug {'0' * 64} False", readable=True),
]
TEXT = listing.linked("rms_norm", "import triton\n\n# from model.rms_norm\ndef rms_norm(): ...\n")


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main.cli, arguments)


@pytest.fixture
def store(own_caches: Path) -> Store:
    """An entry with a kernel and its text, one that names it, and a lone one of which no text is kept."""
    opened = Store.open(own_caches)
    whole = Draft("aot", Key(b"\xab" * 32), b"v", parts=FX[1:3], links=[("fx", Key.of(FX))])
    bare = Draft("tune", Key(b"\xcd" * 32), b"v")
    assert opened.write([Draft("fx", Key.of(FX), b"v", parts=[*FX, TEXT]), whole, bare]) == ["", "", ""]
    opened.close()
    return opened


EXPECTED = f"""\
== graph
graph0 {{
%0 = call_function wrap(kernel_idx=kernel:rms_norm:{KERNEL.short})
%1 = get_attr tensor:{TENSOR.short}
}}
"""
KERNEL_TEXT = """\

== kernel rms_norm
import triton

# from model.rms_norm
def rms_norm(): ...
"""


def test_show_prints_the_graph_with_names_and_the_text_of_its_kernels(store: Store) -> None:
    done = call("show", Key.of(FX).hex[:8])
    inputs = "\n== example_inputs\ninput[0] = shape (8,), device cpu\n"
    assert done.stdout == f"fx {Key.of(FX).hex}\n\n{EXPECTED}{inputs}{KERNEL_TEXT}"
    assert (done.exit_code, done.stderr) == (0, "")


def test_the_text_of_a_kernel_is_found_through_the_entry_that_is_named(store: Store) -> None:
    assert call("show", "abab").stdout == f"aot {'ab' * 32}\n\n{EXPECTED}{KERNEL_TEXT}"


def test_a_text_that_is_not_kept_is_said(own_caches: Path, store: Store) -> None:
    assert call("show", "cdcd").stdout.endswith("nothing of this entry is kept as text\n")
    opened = Store.open(own_caches)
    opened.delete([stored.id for stored in opened.scan("fx")])
    opened.close()
    assert call("show", "abab").stdout.endswith("== kernel rms_norm\n(its linked text is not kept)\n")


def test_explain_prints_the_entry(store: Store) -> None:
    done = call("explain", Key.of(FX).hex)
    assert done.exit_code == 0
    assert f"    {KERNEL.short} kernel 0 rms_norm" in done.stdout.splitlines()


@pytest.mark.parametrize("command", ["explain", "show"])
@pytest.mark.parametrize(("key", "said"), [("ef01", "holds no entry"), ("zz", "is no key")])
def test_a_key_that_is_none_is_one_line_and_status_2(store: Store, command: str, key: str, said: str) -> None:
    done = call(command, key)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def test_a_text_beside_a_key_is_no_difference(own_caches: Path, store: Store) -> None:
    opened = Store.open(own_caches)
    asked = [FX[0], FX[1], FX[2], Part.of("inductor_config", f"debug {'1' * 64} True", readable=True)]
    found = why.nearest(opened, Stats(), "fx", Key.of(asked), asked)
    opened.close()
    assert [str(each) for each in found.differs] == ["inductor_config → debug: False → True"]


def test_a_damaged_text_is_one_line_and_status_2(own_caches: Path, store: Store) -> None:
    opened = Store.open(own_caches)
    row = TEXT.digest.raw + bytes(4)
    opened.swap("blobs", row, opened.fetch("blobs", row), b"nonsense")
    opened.close()
    done = call("show", Key.of(FX).hex)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


# --- real compiles ---


def test_a_kernel_that_was_launched_by_hand_shows_its_specialization_and_its_recipe(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    import kcache
    from kcache.hooks import session
    from tests.test_build import HELPER, compiled
    from tests.test_link import kern, program

    kcache.enable()
    kernel = program(tmp_path, {"kern.py": kern("f(x)", HELPER)})
    compiled(kernel)
    cache = session.current().cache
    cache.flush()
    (stored,) = [each for each in cache.store.scan("triton") if each.record and each.record.label == "kern"]
    source = kcache.fingerprint(kernel).source
    kcache.disable()
    said = call("show", stored.key.hex).stdout
    assert "== signature\nBLOCK = 'constexpr'\nn = 'i32'\no_ptr = '*fp32'\nx_ptr = '*fp32'\n" in said
    assert "== constants\nBLOCK = 64\n" in said
    assert "\nnum_warps = 2\n" in said
    assert said.endswith(f"== kernel kern\n{source.rstrip()}\n")


def test_the_linked_text_of_a_kernel_is_saved_with_the_graph(tmp_path: Path) -> None:
    """Short of a GPU to compile the graph on: the kernel is printed, and then the entry saved, through the seams."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    import kcache
    from kcache.hooks import guarded, printed, session
    from kcache.key import Description
    from tests.test_link import SAME_NAMES, program

    kcache.enable()
    kernel = program(tmp_path, SAME_NAMES)
    found = kcache.fingerprint(kernel)
    description = Description((*FX[:2], Part("kernel 0 kern", found.digest, found.listing)), tuple, "kern")
    key = guarded.DESCRIPTIONS.remember(description)
    printed.text_of(kernel, lambda: "")
    with guarded.saving(lambda: guarded.Saving("", 0)):
        guarded.save("fx", key, b"v")
    session.current().cache.flush()
    kcache.disable()
    assert call("show", key.hex).stdout.endswith(f"== kernel kern\n{found.source.rstrip()}\n")


def test_a_compiled_graph_shows_what_torch_made_of_it() -> None:
    torch = pytest.importorskip("torch")
    import kcache
    from kcache.hooks import session

    kcache.enable()
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8, 2))
    cache = session.current().cache
    cache.flush()
    keys = {layer: next(cache.store.scan(layer)).key.hex for layer in ("aot", "fx", "cpp")}
    kcache.disable()
    assert "call_function aten.sin.default(%0)" in call("show", keys["fx"]).stdout
    assert "input[0] = shape (8, 2), dtype torch.float32" in call("show", keys["fx"]).stdout
    assert "== graph\ngraph0 {" in call("show", keys["aot"]).stdout
    assert "std::sin" in call("show", keys["cpp"]).stdout or ".sin()" in call("show", keys["cpp"]).stdout
    assert f"names: fx {keys['fx'][:12]}" in call("explain", keys["aot"]).stdout
