"""Timings of a kernel's configs, kept where Triton is asked to keep them, and never for another kernel.

The driver is a fake that names a device, as in `test_variants`, and what a benchmark would find is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kcache  # noqa: E402
from kcache.hooks import session  # noqa: E402
from tests.test_link import HEAD, program  # noqa: E402
from tests.test_variants import device  # noqa: E402, F401

CONFIGS = '[triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 4)]'
TUNED = HEAD + f"""
import cfg
alias = tl.<alias>
@triton.autotune({CONFIGS}, key=["n"], cache_results=True<more>)
@triton.jit
def kern(x_ptr, o_ptr, n, BLOCK: tl.constexpr):<comment>
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, alias(tl.load(x_ptr + offs, mask=offs < n) * cfg.K), mask=offs < n)
"""
VALUES = {"alias": "exp", "more": "", "comment": ""}
KEY = (256, "torch.float32")


def tuned(folder: Path, k: str = "7.5", **values: str) -> Any:
    text = TUNED
    for name, value in {**VALUES, **values}.items():
        text = text.replace(f"<{name}>", value)
    return program(folder, {"cfg.py": f"K = {k}\n", "kern.py": text})


def measured(kernel: Any, timings: list[Any], key: Any = KEY, configs: Any = None) -> int:
    """Ask for the best config; how often it was measured."""
    runs = []
    kernel.nargs = {}
    configs = configs or kernel.configs

    def bench() -> None:
        runs.append(1)
        kernel.configs_timings = dict(zip(configs, timings))
        kernel.cache[key] = min(kernel.configs_timings, key=lambda c: str(kernel.configs_timings[c]))

    kernel.check_disk_cache(key, configs, bench)
    active = session.CURRENT
    if active is not None:
        active.cache.flush()
    return len(runs)


TIMES = [4.0, 2.0, float("inf"), 1.0]


def test_the_second_process_takes_the_first_ones_timings(device: None, tmp_path: Path) -> None:  # noqa: F811
    assert measured(tuned(tmp_path / "p"), TIMES) == 1
    again = tuned(tmp_path / "q", comment="  # fast")
    assert measured(again, TIMES) == 0
    assert list(again.configs_timings.values()) == TIMES
    assert again.cache[KEY].num_warps == 4 and again.cache[KEY].kwargs == {"BLOCK": 128}
    assert again.cache[KEY] is again.configs[3]


def test_quantiles_are_kept(device: None, tmp_path: Path) -> None:  # noqa: F811
    lists = [[4.0, 3.0], [1.0, 0.5], [2.0, 1.0], [float("inf"), float("inf")]]
    measured(tuned(tmp_path / "p"), lists)
    again = tuned(tmp_path / "q")
    assert measured(again, lists) == 0
    assert again.cache[KEY] is again.configs[1]


@pytest.mark.parametrize(
    "edit",
    [{"k": "7.25"}, {"alias": "sqrt"}, {"more": ', reset_to_zero=["o_ptr"]'}, {"more": ", warmup=7"}],
)
def test_another_kernel_is_measured(device: None, tmp_path: Path, edit: dict[str, str]) -> None:  # noqa: F811
    measured(tuned(tmp_path / "p"), TIMES)
    assert measured(tuned(tmp_path / "q", **edit), TIMES) == 1


def test_another_key_or_fewer_configs_are_measured(device: None, tmp_path: Path) -> None:  # noqa: F811
    kernel = tuned(tmp_path / "p")
    measured(kernel, TIMES)
    assert measured(kernel, TIMES, key=(256.0, "torch.float32")) == 1
    assert measured(kernel, TIMES, configs=kernel.configs[1:]) == 1
    kernel.configs[0].maxnreg = 64
    assert measured(kernel, TIMES) == 1
    kernel.configs[0].maxnreg = None
    assert measured(kernel, TIMES) == 0


def test_what_cannot_be_followed_is_measured_each_time(device: None, tmp_path: Path) -> None:  # noqa: F811
    before = kcache.stats()
    kernel = program(tmp_path, {"kern.py": TUNED.replace("<alias>", "exp").replace("<more>", "").replace("<comment>", "").replace("import cfg", "import torch\nclass cfg:\n    K = torch.ones(3)")})
    assert [measured(kernel, TIMES) for _ in range(2)] == [1, 1]
    assert any(layer == "tune" and what == "bypass" for layer, what, _ in kcache.stats().since(before).reasons)


def test_a_damaged_entry_is_measured_again(device: None, tmp_path: Path) -> None:  # noqa: F811
    from kcache.digest import Key
    from kcache.hooks import timings

    kernel = tuned(tmp_path / "p")
    for broken in (b"{}", b'{"timings": [1.0]}', b"not"):
        parts = timings.parts_of(kernel, KEY, kernel.configs)
        session.current().cache.store.delete([each.id for each in session.current().cache.store.scan("tune")])
        session.current().cache.put("tune", Key.of(parts), broken)
        session.current().cache.flush()
        assert measured(kernel, TIMES) == 1
        assert measured(kernel, TIMES) == 0
