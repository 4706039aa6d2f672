"""`kcache.explain(kernel_or_key)`: what is stored under a key, and what a kernel differs in from the stored one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kcache
from kcache import about
from kcache.counters import Stats
from kcache.digest import Key, Part
from kcache.draft import Draft
from kcache.errors import NotFound, StoreError
from kcache.store import Store

PARTS = [Part.of("graph", "a", readable=True), Part.of("device", "cpu")]
OTHER = [Part.of("graph", "a", readable=True), Part.of("device", "gpu")]


@pytest.fixture
def store(own_caches: Path) -> Iterator[Store]:
    """The store that `KCACHE_DIR` names, with an entry that names another, and one that is like it."""
    opened = Store.open(own_caches)
    needed = Draft("fx", Key.of(PARTS), b"v" * 100, parts=PARTS, label="rms_norm")
    near = Draft("fx", Key.of(OTHER), b"v", parts=OTHER)
    whole = Draft("aot", Key(b"\xab" * 32), b"v", links=[("fx", Key.of(PARTS))], guards="s0 < 16", cost_ns=3 * 10**9)
    assert opened.write([needed, near, whole]) == ["", "", ""]
    yield opened
    opened.close()


def test_an_entry_is_found_by_the_first_digits_of_its_key(store: Store) -> None:
    found = kcache.explain(Key.of(PARTS).hex[:9])
    assert (found.layer, found.key, found.label) == ("fx", Key.of(PARTS), "rms_norm")
    assert [part.name for part in found.parts] == ["graph", "device"]
    assert found.against == Key.of(OTHER)
    assert [d.chain for d in found.differs] == [("device",)]
    assert str(found).splitlines()[-2:] == [f"nearest other entry: fx {Key.of(OTHER).short}", "  device differs"]


@pytest.mark.parametrize("spelled", ["ab" * 32, "a" + "ab" * 32, "ABAB", "abababa", Key(b"\xab" * 32)])
def test_every_spelling_of_a_key(store: Store, spelled: Any) -> None:
    """Whole, as torch spells it with a letter before, in capitals, with an odd number of digits, and as an object."""
    found = kcache.explain(spelled)
    assert found.key == Key(b"\xab" * 32)
    assert f"    names: fx {Key.of(PARTS).short}" in str(found).splitlines()
    assert "    under guards: s0 < 16" in str(found).splitlines()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("aba", "at least 4"),
        ("no key", "at least 4"),
        ("0" * 66, "at least 4"),
        ("cdcd", "holds no entry"),
        ("ababc", "holds no entry"),
    ],
)
def test_what_is_no_key_or_stands_under_none_says_so(store: Store, start: str, said: str) -> None:
    with pytest.raises(NotFound, match=said):
        kcache.explain(start)


def test_digits_that_fit_several_keys_name_them(store: Store) -> None:
    store.write([Draft("aot", Key(b"\xab" * 31 + b"\0"), b"v")])
    with pytest.raises(NotFound, match=f"several keys begin with abab: aot {'ab' * 8}, aot {'ab' * 8}; give more"):
        kcache.explain("abab")
    assert len(about.find(store, "abab")) == 2


def test_without_a_store_a_key_is_an_error_and_a_function_is_not() -> None:
    with pytest.raises(StoreError, match="no kcache store"):
        kcache.explain("abab")
    assert "no kcache store" in str(kcache.explain(about.find))


@pytest.mark.parametrize("thing", [3, sys, b"abab", 1.5, ["abab"]], ids=repr)
def test_anything_else_is_refused_with_what_is_taken(thing: Any) -> None:
    with pytest.raises(TypeError, match="takes a kernel, a function, a class or a key"):
        kcache.explain(thing)


def test_a_damaged_part_list_is_said(store: Store) -> None:
    row = b"fx\0" + Key.of(PARTS).raw
    store.swap("parts", row, store.fetch("parts", row), b"KCP1 nonsense")
    assert "part list: truncated" in str(about.entry(store, Stats(), Key.of(PARTS).hex))


MODULE = """
import triton, triton.language as tl
EPS = tl.constexpr(1e-5)
@triton.jit
def _scale(x, w):
    return x * w / tl.sqrt(x + EPS)
@triton.jit
def rms_norm(x_ptr, w_ptr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x_ptr + i, _scale(tl.load(x_ptr + i), tl.load(w_ptr + i)))
"""


def loaded(root: Path, name: str, text: str) -> Any:
    (root / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, root / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.rms_norm


def test_a_kernel_says_what_it_depends_on_and_what_differs_from_the_stored_one(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    old, new = loaded(tmp_path, "about1", MODULE), loaded(tmp_path, "about2", MODULE.replace("1e-5", "1e-6"))
    assert "no kernel of this name" in str(kcache.explain(old))
    found = kcache.fingerprint(old)
    parts = [*PARTS, Part("kernel 0 rms_norm", found.digest, found.listing)]
    store.write([Draft("triton", Key.of(parts), b"v", parts=parts)])
    said = str(kcache.explain(old)).splitlines()
    assert said[1:4] == ["  kernel rms_norm", "    helper _scale", "      constant EPS: constexpr(1e-05)"]
    assert said[-1] == f"stored as it is now: triton {Key.of(parts).short}"
    assert str(kcache.explain(new)).splitlines()[-1] == (
        "  kernel rms_norm → helper _scale → constant EPS: constexpr(1e-05) → constexpr(1e-06)"
    )


def test_names_that_cannot_be_followed_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    kernel = loaded(tmp_path, "about3", MODULE.replace("tl.constexpr(1e-5)", "open"))
    assert "cannot be followed, so it is not cached: _scale: EPS:" in str(kcache.explain(kernel))
