"""Forks, threads and pools; 1,000 forks: `python -m tests.faults.run`."""

from __future__ import annotations

import pytest

from tests.faults import host


@pytest.mark.parametrize("show, times", [("beside", 40), ("inside", 20), ("threads", 20)])
def test_forks_of_a_busy_process_harm_neither_side(tmp_path, show, times):
    figures = host.call(f"tests.processes.forks:{show}", str(tmp_path), times)
    assert figures.whole, figures.to_dict()
    busy = sum(n for name, n in figures.counts.items() if name.endswith("busy"))
    assert sum(figures.counts.values()) - busy == times > 2 * busy


def test_spawned_pool_shares_the_store(tmp_path):
    figures = host.call("tests.processes.forks:pool", str(tmp_path), 16, 48)
    assert figures.whole, figures.to_dict()
    assert figures.counts["tasks of a pool"] == 48
