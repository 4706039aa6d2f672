"""A crowd of processes under `kill -9`; the whole minute is `python -m tests.faults.run`."""

from __future__ import annotations

from tests.processes import crowd


def test_killed_crowd_loses_nothing_and_reads_nothing_wrong(tmp_path):
    figures = crowd.run(tmp_path / "s", seconds=4, processes=32)
    assert figures.whole, figures.to_dict()
    assert figures.counts["kills"] >= 20
    assert figures.counts["hit"] > 100 and figures.counts["evict"] > 5
    assert figures.counts["committed for good"] > crowd.KEPT / 2
