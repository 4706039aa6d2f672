"""Random programs: where an oracle sees a difference the key differs, and spelling makes none.

The oracle of a kernel is what Triton makes of it for a GPU that need not be there; that of a
Python function is what it returns.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kcache.closure import fingerprint  # noqa: E402
from kcache.errors import Opaque  # noqa: E402
from kcache.link import link  # noqa: E402
from tests.drawn import MEANING, SPELLING, Program, functions, kernels  # noqa: E402
from tests.edits import load, write  # noqa: E402
from tests.ttir import lower  # noqa: E402

EXAMPLES = int(os.environ.get("KCACHE_EXAMPLES", "50"))
"""Programs for each property; `KCACHE_EXAMPLES=5000 pytest tests/test_properties.py` is for a quiet hour."""

PROPERTY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller program is not worth the minutes
    report_multiple_bugs=False,
)
KERNEL, FUNCTION = "kern:kern", "mod:fn"

_folder = Path()
_count = itertools.count()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the programs of one test lie; their files stay, since text is read from them."""
    global _folder
    _folder = tmp_path
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield


def loaded(files: dict[str, str], target: str) -> Any:
    """The object `target` of a version, imported anew."""
    path = _folder / str(next(_count))
    write(files, path)
    return load(path, files, target)


def lowered(kernel: Any) -> str:
    """TTIR, or Triton's refusal."""
    try:
        return lower(kernel)
    except triton.CompilationError as error:
        return f"refused: {error.error_message}"


def linked(kernel: Any) -> str | None:
    """TTIR of the linked text, or None if it cannot be linked."""
    try:
        text = link(kernel).module
    except Opaque as error:
        event(f"not linked: {error.why}")
        return None
    return lowered(loaded({"linked.py": text}, "linked:kern"))


def returned(fn: Any) -> str:
    """What the function returns for a few numbers, or how it fails."""
    found = []
    for x in (0, 1, 5):
        try:
            found.append(repr(fn(x)))
        except (TypeError, OverflowError) as error:
            found.append(type(error).__name__)
    return str(found)


@PROPERTY
@given(st.data(), kernels.programs())
def test_kernel_that_lowers_otherwise_has_another_key(data: st.DataObject, program: Program) -> None:
    before = loaded(program.version(), KERNEL)
    after = loaded(program.version(data.draw(program.edits(MEANING))), KERNEL)
    assert not fingerprint(before).opaque
    differs = lowered(before) != lowered(after) or linked(before) != linked(after)
    event(f"TTIR differs: {differs}")
    assert not differs or fingerprint(before).digest != fingerprint(after).digest


@PROPERTY
@given(st.data(), kernels.programs())
def test_kernel_spelled_otherwise_has_the_same_key(data: st.DataObject, program: Program) -> None:
    before = loaded(program.version(), KERNEL)
    after = loaded(program.version(data.draw(program.edits(SPELLING))), KERNEL)
    assert fingerprint(before).digest == fingerprint(after).digest


@PROPERTY
@given(kernels.programs())
def test_linked_text_lowers_alike(program: Program) -> None:
    kernel = loaded(program.version(), KERNEL)
    wanted, found = lowered(kernel), linked(kernel)
    event(f"lowers: {not wanted.startswith('refused')}")
    # Triton refuses a class or an object that is global; the text does without them
    assert found is None or found == wanted or wanted.startswith("refused")


@PROPERTY
@given(st.data(), functions.programs())
def test_function_that_returns_otherwise_has_another_key(data: st.DataObject, program: Program) -> None:
    before = loaded(program.version(), FUNCTION)
    after = loaded(program.version(data.draw(program.edits(MEANING))), FUNCTION)
    assert not fingerprint(before).opaque
    differs = returned(before) != returned(after)
    event(f"result differs: {differs}")
    assert not differs or fingerprint(before).digest != fingerprint(after).digest


@PROPERTY
@given(st.data(), functions.programs())
def test_function_spelled_otherwise_has_the_same_key(data: st.DataObject, program: Program) -> None:
    before = loaded(program.version(), FUNCTION)
    after = loaded(program.version(data.draw(program.edits(SPELLING))), FUNCTION)
    assert fingerprint(before).digest == fingerprint(after).digest
