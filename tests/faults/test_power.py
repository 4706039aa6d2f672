"""Power loss at any moment; all cuts: `python -m tests.faults.run`."""

from __future__ import annotations

import pytest

from tests.faults import host


@pytest.mark.skipif(host.no_compiler() != "", reason=host.no_compiler())
def test_power_loss_takes_the_last_commit_at_most(tmp_path):
    figures = host.call("tests.faults.power:run", str(tmp_path), 40, 12, shim=True)
    assert figures.whole, figures.to_dict()
    assert figures.counts["disks"] == 60
    assert figures.counts["syncs"] > 40
