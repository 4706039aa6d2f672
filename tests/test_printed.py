"""What Inductor is given to print for a user kernel, short of a GPU to run it on."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kcache  # noqa: E402
from kcache.closure import fingerprint  # noqa: E402
from kcache.digest import Digest, Part  # noqa: E402
from kcache.hooks import printed  # noqa: E402
from tests.test_link import SAME_NAMES, kern, program  # noqa: E402

STOCK = "def kern(x_ptr, o_ptr, n, BLOCK: tl.constexpr):\n    pass\n\nK = 1"


@pytest.fixture
def enabled() -> Iterator[None]:
    kcache.enable()
    yield
    kcache.disable()


def text_of(kernel: Any) -> str:
    return printed.text_of(kernel, lambda: STOCK)


def test_the_linked_text_takes_the_place_of_inductors(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, SAME_NAMES)
    text = text_of(kernel)
    defined = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    assert defined == ["kern", "helper", "helper_1"]
    assert f"# kcache {fingerprint(kernel).digest.hex}" in text


def test_link_off_leaves_inductors_text_with_the_digest(tmp_path: Path) -> None:
    kernel = program(tmp_path, SAME_NAMES)
    kcache.enable(link="off")
    try:
        text = text_of(kernel)
        assert printed.mode() == "off"
    finally:
        kcache.disable()
    first, rest = text.split("\n\n")
    assert rest == "K = 1" and first.endswith(f"    pass  # kcache {fingerprint(kernel).digest.hex}")


def test_an_unlinkable_kernel_is_printed_as_ever_and_named(enabled: None, tmp_path: Path) -> None:
    before = "import enum\nclass E(enum.IntEnum):\n    A = 1\n"
    kernel = program(tmp_path, {"kern.py": kern("x * E.A", before)})
    found = fingerprint(kernel)
    assert not found.opaque
    assert text_of(kernel).startswith(STOCK.partition("\n")[0])
    reasons = printed.unlinked([Part("kernel 0 kern", found.digest), Part("kernel 1 other", Digest.of(b""))])
    assert len(reasons) == 1 and "E.A" in reasons[0]


def test_what_cannot_be_followed_is_found_by_nobody(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("x * T", "import torch\nT = torch.ones(3)\n")})
    assert fingerprint(kernel).opaque
    assert text_of(kernel) != text_of(kernel)


def test_a_kernel_whose_file_is_gone_is_still_linked(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("x * 2")})
    (tmp_path / "kern.py").unlink()
    sys.modules.pop("kern")
    assert "x * 2" in text_of(kernel)


def test_inductors_extension_of_a_kernel_is_linked_in_its_place(enabled: None, tmp_path: Path) -> None:
    """Epilogue fusion (torch 2.13 on) adds parameters, and names that its module defines."""
    kernel = program(tmp_path, {"kern.py": kern("h(x)", "@triton.jit\ndef h(x):\n    return x * 2\n")})
    extended = kernel.src.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, extra").replace(
        "h(x)", "libdevice.tanh(h(x))"
    )
    text = printed.text_of(kernel, lambda: STOCK, (None, extended))
    assert "libdevice.tanh(h(x))" in text and "def h(x):" in text and "extra" in text


def test_the_linked_text_is_kept_beside_the_key(enabled: None, tmp_path: Path) -> None:
    """Once a kernel, also where a graph holds it twice; nothing for one that was printed by Inductor."""
    kernel = program(tmp_path, SAME_NAMES)
    found = fingerprint(kernel)
    parts = [Part("kernel 0 kern", found.digest), Part("kernel 1 kern", found.digest), Part("graph", Digest.of(b""))]
    assert printed.texts([Part("kernel 0 kern", Digest.of(b"another"))]) == []
    text_of(kernel)
    (kept,) = printed.texts(parts)
    assert (kept.name, kept.text.decode()) == ("linked kern", found.source)
