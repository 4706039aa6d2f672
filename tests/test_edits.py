"""The tables of edits, row by row: at the level of keys, and end to end in processes of their own.

`make edits` runs this file; `conftest` prints at the end how many rows of each kind are right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kcache  # noqa: E402
from kcache.closure import fingerprint  # noqa: E402
from tests.edits import KINDS, NEUTRAL, OPAQUE, REPAIR, SEMANTIC, Row, load, programs, rows, write  # noqa: E402
from tests.edits.program import described  # noqa: E402

ROWS, PROGRAMS = rows(), programs()
RUN = [row for row in PROGRAMS if row.kind != OPAQUE]
ROOT = Path(__file__).parents[1]

Note = Callable[[str, object], None]
Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of one module are made within a second, and then Python trusts old bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def test_tables_are_wide_and_names_are_unique() -> None:
    table = [*ROWS, *PROGRAMS]
    assert len(table) >= 150
    assert len({row.name for row in table}) == len(table)
    assert {row.kind for row in table} == set(KINDS)


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_fingerprint(row: Row, tmp_path: Path, record_property: Note) -> None:
    record_property("edit at key level", row.kind)
    found = []
    for edited in (False, True):
        folder = tmp_path / str(edited)
        write(row.version(edited), folder)
        found.append(fingerprint(load(folder, [*row.before, *row.after], row.target)))
    before, after = found
    if row.kind == OPAQUE:
        assert before.opaque
        return
    assert not before.opaque and not after.opaque
    assert (before.digest == after.digest) == (row.kind == NEUTRAL)
    if row.kind != NEUTRAL:
        assert [(p.name, p.digest) for p in before.parts] != [(p.name, p.digest) for p in after.parts]


@pytest.fixture
def enabled(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """kcache on; Dynamo puts user kernels into graphs also on a machine without a GPU."""
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    assert kcache.enable()
    yield
    kcache.disable()


@pytest.mark.parametrize("row", PROGRAMS, ids=[r.name for r in PROGRAMS])
def test_key_of_a_program(row: Row, tmp_path: Path, enabled: None, record_property: Note) -> None:
    record_property("edit at key level", row.kind)
    found = []
    for edited in (False, True):
        folder = tmp_path / str(edited)
        write(row.version(edited), folder)
        found.append(described(folder))
    if row.kind == OPAQUE:
        assert all(isinstance(each, str) for each in found), found
        return
    before, after = found
    assert not isinstance(before, str), before
    assert not isinstance(after, str), after
    differing = [a.name for a, b in zip(before.parts, after.parts) if a != b]
    assert (before.key == after.key) == (row.kind == NEUTRAL), differing


def processes(root: Path, device: str) -> tuple[Outcomes, Outcomes]:
    """Outcomes of every program: the first versions, and on their store, with nothing else kept, the edited ones.

    Only the system's temporary directory is shared, where torch keeps precompiled C++ headers.
    """
    chosen = [row for row in RUN if row.device == device]
    found = []
    for run, edited in (("before", False), ("after", True)):
        for row in chosen:
            write(row.version(edited), root / run / row.name)
        caches = {name: str(root / f"{run}-{name}") for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HOME")}
        (root / "tmp").mkdir(exist_ok=True)
        more = {"KCACHE_DIR": str(root / "store"), "TMPDIR": str(root / "tmp"), "PYTHONPATH": str(ROOT), "KCACHE_STRICT": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.edits.program", str(root / run), device, *[row.name for row in chosen]],
            env={**os.environ, **caches, **more}, cwd=root, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found[0], found[1]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes]:
    return processes(tmp_path_factory.mktemp("cpu"), "cpu")


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes]:
    return processes(tmp_path_factory.mktemp("gpu"), "cuda")


def check(row: Row, both: tuple[Outcomes, Outcomes]) -> None:
    """The value of each version, and for the second whether it was found or compiled."""
    before, after = (found[row.name] for found in both)
    assert row.kind == REPAIR or before["right"], before
    assert after["right"], after
    aot = after["layers"].get("aot", {})
    assert not aot.get("bypass") and not aot.get("error"), after
    if row.kind == NEUTRAL:
        missed = {layer: counts["miss"] for layer, counts in after["layers"].items() if counts.get("miss")}
        assert aot.get("hit") and not missed, after
    if row.kind == SEMANTIC:
        assert aot.get("miss") and not aot.get("hit"), after


@pytest.mark.slow
@pytest.mark.parametrize("row", [r for r in RUN if r.device == "cpu"], ids=[r.name for r in RUN if r.device == "cpu"])
def test_end_to_end(row: Row, on_cpu: tuple[Outcomes, Outcomes], record_property: Note) -> None:
    record_property("edit end to end", row.kind)
    check(row, on_cpu)


@pytest.mark.gpu
@pytest.mark.parametrize("row", [r for r in RUN if r.device == "cuda"], ids=[r.name for r in RUN if r.device == "cuda"])
def test_end_to_end_on_a_gpu(row: Row, on_gpu: tuple[Outcomes, Outcomes], record_property: Note) -> None:
    record_property("edit end to end", row.kind)
    check(row, on_gpu)
