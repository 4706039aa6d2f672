"""Full disks, limits, what cannot be written; with torch too: `python -m tests.faults.run`."""

from __future__ import annotations

import pytest

from tests.faults import host, space


@pytest.mark.skipif(host.no_mounts() != "", reason=f"cannot mount: {host.no_mounts()}")
@pytest.mark.parametrize("name", [name for name in space.CASES if not name.startswith("compiling")])
def test_trouble_is_one_warning_and_a_counted_reason(tmp_path, name):
    shim = name in space.SHIMMED
    if shim and host.no_compiler():
        pytest.skip(host.no_compiler())
    figures = host.call("tests.faults.space:run", str(tmp_path / name), name, shim=shim, mounts=True)
    assert figures.whole, figures.to_dict()
    assert figures.counts
