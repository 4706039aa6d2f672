"""Ranks that agree on something while they compile: none finds its entry while another waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._functorch.config")

from kcache.hooks import ranks  # noqa: E402

PROGRAM = Path(__file__).parent / "programs" / "ranks.py"

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


def both(root: Path, name: str, talk: str) -> list[dict[str, Any]]:
    """Reports of two ranks, each with a store of its own."""
    started = []
    for rank in range(2):
        own = {n: str(root / f"{name}{rank}{n}") for n in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        env = {**os.environ, **own, "KCACHE_DIR": str(root / f"store{rank}"), "KCACHE_STRICT": "1"}
        command = [sys.executable, str(PROGRAM), str(rank), str(root / f"{name}meeting"), talk]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), [err[-1500:] for _, err in ended]
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@pytest.mark.slow
def test_ranks_that_talk_store_nothing(tmp_path: Path) -> None:
    """What one rank had stored, it would find where another compiles and waits for it."""
    for each in both(tmp_path, "ranks", "talk"):
        assert each["right"]
        assert not each["aot"].get("miss") and not each["aot"].get("stored")
        assert any("_sync_decision_cross_ranks" in reason for _, _, reason in each["reasons"]), each


def test_one_process_is_never_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches alone do not matter; they are read where they lie."""
    autograd, inductor = torch._functorch.config, torch._inductor.config
    with autograd.patch(_sync_decision_cross_ranks=True):
        assert ranks.talking() == ""
        monkeypatch.setattr(ranks, "_several", lambda: True)
        assert ranks.talking() == "torch._functorch.config._sync_decision_cross_ranks"
    assert ranks.talking() == ""
    with inductor.patch({"aten_distributed_optimizations.enable_overlap_scheduling": True}):
        assert ranks.talking().endswith("aten_distributed_optimizations.enable_overlap_scheduling")
