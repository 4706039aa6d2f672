"""`kill -9` at the steps of a write; every step and deed: `python -m tests.faults.run`."""

from __future__ import annotations

import pytest

from tests.faults import host


@pytest.mark.skipif(host.no_compiler() != "", reason=host.no_compiler())
def test_writer_killed_at_any_step_loses_nothing_that_was_committed(tmp_path):
    figures = host.call("tests.faults.steps:run", str(tmp_path), 499, ["write", "evict"], shim=True)
    assert figures.whole, figures.to_dict()
    assert figures.counts["calls"] >= 10
    assert figures.counts["kills"] >= 3 * figures.counts["calls"] + 10
    assert figures.counts["not reached"] == 0
