"""What differs between two keys, named down to the helper or the constant."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from kcache import listing
from kcache.closure import fingerprint
from kcache.diff import differences, short
from kcache.digest import Digest, Part
from kcache.listing import load

pytest.importorskip("triton")

MODULE = """
import triton, triton.language as tl
EPS = tl.constexpr(1e-5)
DTYPE = tl.float32
@triton.jit
def _scale(x, w):
    y = x * w
    return y / tl.sqrt(x + EPS)
@triton.jit
def rms_norm(x_ptr, w_ptr, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(x_ptr + i, mask=i < n).to(DTYPE)
    tl.store(x_ptr + i, _scale(x, tl.load(w_ptr + i)))
"""
count = iter(range(10**6))


def part(root: Path, text: str) -> Part:
    """The part that a key has for the kernel in `text`."""
    name = f"diffed{next(count)}"
    path = root / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found = fingerprint(module.rms_norm)
    assert not found.opaque
    return Part("kernel 0 rms_norm", found.digest, found.listing)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1e-5", "1e-6", "kernel rms_norm → helper _scale → constant EPS: constexpr(1e-05) → constexpr(1e-06)"),
        ("tl.float32", "tl.float16", "kernel rms_norm → constant DTYPE: tl.dtype('fp32') → tl.dtype('fp16')"),
        ("x * w", "x + w", "kernel rms_norm → helper _scale: %0 = x * w → %0 = x + w"),
        (
            "i < n",
            "i <= n",
            "kernel rms_norm: %1 = $1(x_ptr + %0, mask=%0 < n).to($2) → %1 = $1(x_ptr + %0, mask=%0 <= n).to($2)",
        ),
        (
            "tl.sqrt",
            "tl.exp",
            "kernel rms_norm → helper _scale: $0 = triton.language.math.sqrt → $0 = triton.language.math.exp",
        ),
    ],
)
def test_an_edit_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """One edit is one difference, at the end of the chain that leads to it."""
    assert old in MODULE
    before, after = part(tmp_path, MODULE), part(tmp_path, MODULE.replace(old, new))
    assert [str(d) for d in differences([before], [after])] == [expected]


def test_a_comment_is_no_difference(tmp_path: Path) -> None:
    before, after = part(tmp_path, MODULE), part(tmp_path, MODULE.replace("    y = x", "    # why\n    y = x"))
    assert differences([before], [after]) == []


def test_settings_differ_by_name() -> None:
    def setting(value: str) -> Part:
        row = f"max_autotune {Digest.of(value.encode()).hex} {value}"
        return Part.of("inductor_config", f"a {'0' * 64} 1\n{row}", readable=True)

    found = differences([setting("False")], [setting("True")])
    assert [str(d) for d in found] == ["inductor_config → max_autotune: False → True"]


def test_parts_of_one_side_and_parts_without_text() -> None:
    found = differences([Part.of("a", "1"), Part.of("b", "1")], [Part.of("a", "2"), Part.of("c", "1")])
    assert [str(d) for d in found] == ["a differs", "c: not in the nearest entry", "b: only in the nearest entry"]


def table(**rows: tuple[str, str]) -> Part:
    text = listing.settings([(name, Digest.of(whole.encode()), shown) for name, (whole, shown) in rows.items()])
    return Part.of("example_inputs", text, readable=True)


def test_fields_of_a_setting_differ_one_by_one() -> None:
    old = listing.fields({"shape": (8, 16), "stride": (16, 1), "device": "cpu"})
    new = listing.fields({"shape": (8, 4), "stride": (16, 1), "dtype": "float32"})
    found = differences([table(a=("1", old))], [table(a=("2", new))])
    assert [str(d) for d in found] == [
        "example_inputs → a → shape: (8, 16) → (8, 4)",
        "example_inputs → a → dtype: (nothing) → float32",
        "example_inputs → a → device: cpu → (nothing)",
    ]


@pytest.mark.parametrize("shown", ["dict", listing.fields({"shape": (8,)}), "{", "'text'"])
def test_what_a_text_does_not_show_is_said_to_differ(shown: str) -> None:
    """A setting whose value is too long or no plain one, and a part whose text is less than its digest stands for."""
    assert [str(d) for d in differences([table(a=("1", shown))], [table(a=("2", shown))])] == [
        "example_inputs → a differs"
    ]
    old, new = (Part("triton", Digest.of(whole), shown.encode()) for whole in (b"1", b"2"))
    assert [str(d) for d in differences([old], [new])] == ["triton differs"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x * 1.0 + 2", []),
        ("x * 1.5 + 2", ["function f → literal: 1.0 → 1.5"]),
        ("x * 1.5 + 1000", ["function f → literal: 1.0 → 1.5 (and 1 more)"]),
        ("x * 1.5 - 2", ["function f → code differs"]),
        ("x * 1.5", ["function f → code differs"]),
    ],
)
def test_a_literal_of_a_plain_function_is_named_where_nothing_else_differs(body: str, expected: list[str]) -> None:
    def part(text: str) -> Part:
        space: dict[str, Any] = {"__name__": "plain"}
        exec(f"def f(x):\n    return {text}\n", space)
        found = fingerprint(space["f"])
        return Part("function 0 f", found.digest, found.listing)

    assert [str(d) for d in differences([part("x * 1.0 + 2")], [part(body)])] == expected


def test_long_lines_are_cut_around_what_differs() -> None:
    old, new = ("x = " + "a" * 100 + value + "b" * 100 for value in ("1.0", "2.0"))
    (found,) = differences([Part.of("graph", old, readable=True)], [Part.of("graph", new, readable=True)])
    assert (found.before, found.after) == tuple("…" + "a" * 30 + value + "b" * 27 + "…" for value in ("1.0", "2.0"))
    short = [Part.of("graph", f"{old}\n{tail}", readable=True) for tail in ("1\n1", "2\n2")]
    assert str(differences(short[:1], short[1:])[0]) == "graph: 1 → 2 (and 1 more line)"


def test_a_setting_of_one_side() -> None:
    added = {"b": ("2", "2"), "c": ("3", listing.fields({"shape": (8,), "device": "cpu"}))}
    found = differences([table(a=("1", "1"))], [table(a=("1", "1"), **added)])
    assert [str(d) for d in found] == [
        "example_inputs → b: (nothing) → 2",
        "example_inputs → c: (nothing) → shape (8,), device cpu",
    ]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"graph0 {", b'[["a", "@0"], ["links", "7"]]', b"[1, 2]"])
def test_what_is_no_listing_is_refused(data: bytes) -> None:
    """A text in another form, or with links to nowhere, is not read as a tree."""
    assert load(data) is None


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("helper pkg.mod._scale (2)", "helper _scale"),
        ("kernel 0 rms_norm", "kernel rms_norm"),
        ("operator demo::quantize.default backward_fn", "operator demo::quantize.default backward_fn"),
        ("option config 0", "option config 0"),
    ],
)
def test_titles_are_short(title: str, expected: str) -> None:
    assert short(title) == expected
