"""Every test runs strict and with cache directories of its own.

`KCACHE_STRICT=1` turns what a user would see as one warning and a miss into an exception. The directories are set in
the environment, so processes that a test starts share them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every cache below `tmp_path`, set strict mode, and return kcache's directory."""
    store = tmp_path / "kcache"
    os.umask(0o022)  # a directory that its group may write to is refused
    for name in (
        "KCACHE", "KCACHE_KEY_ENV", "KCACHE_LINK", "KCACHE_LOG", "KCACHE_MAX_SIZE", "KCACHE_SIGNING_KEY",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KCACHE_STRICT", "1")
    monkeypatch.setenv("KCACHE_DIR", str(store))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU; torch is only asked when such a test was collected."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and not _has_gpu():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many rows of the tables of edits are right, for each kind and level."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for level, kind in report.user_properties:
                if level.startswith("edit "):
                    found[f"{level}, {kind}"][outcome == "failed"] += 1
    if found:
        terminalreporter.section("tables of edits")
    for row, (right, wrong) in sorted(found.items()):
        terminalreporter.line(f"{row + ':':<32}{right:>5} right{wrong:>5} wrong")
