"""Timings of a kernel's configs, kept where Triton is asked to keep them, and never for another kernel.

The driver is a fake that names a device, as in `test_variants`, and what a benchmark would find is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kcache  # noqa: E402
from kcache.hooks import session, variants  # noqa: E402
from tests.test_link import HEAD, program  # noqa: E402
from tests.test_variants import device  # noqa: E402, F401

CONFIGS = '[triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 4)]'
TUNED = HEAD + f"""
import cfg
alias = tl.<alias>
@triton.autotune({CONFIGS}, key=["n"]<more>)
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
    """Ask for the best config as Triton's `run` does for a key that it does not know; how often it was measured."""
    runs = []
    kernel.nargs = {}
    configs = configs or kernel.configs
    kernel.prune_configs({})

    def bench() -> None:
        runs.append(1)
        kernel.configs_timings = dict(zip(configs, timings))
        kernel.cache[key] = min(kernel.configs_timings, key=lambda c: str(kernel.configs_timings[c]))

    assert kernel.cache_results
    kernel.check_disk_cache(key, configs, bench)
    session.current().cache.flush()
    return len(runs)


def launched(kernel: Any, n: Any = 256, offset: int = 0) -> tuple[int, Any]:
    """Launch by `run`, all of it Triton's but the measuring and the launch; how often it measured, and the winner."""
    runs = []

    def bench(call: Any, quantiles: Any) -> float:
        runs.append(1)
        return 1.0 / len(runs)

    kernel.do_bench = bench
    real = kernel.fn.run
    kernel.fn.run = lambda *args, **kwargs: real(*args, **kwargs) if kwargs.get("warmup") else None
    x = torch.ones(1024)
    kernel.run(x[offset:], torch.empty_like(x), n, grid=(1,))
    session.current().cache.flush()
    return len(runs), kernel.best_config


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
        kernel.nargs = {}
        parts = timings.parts_of(kernel, KEY, kernel.configs, {})
        session.current().cache.store.delete([each.id for each in session.current().cache.store.scan("tune")])
        session.current().cache.put("tune", Key.of(parts), broken)
        session.current().cache.flush()
        assert measured(kernel, TIMES) == 1
        assert measured(kernel, TIMES) == 0


def test_a_launch_in_another_process_measures_nothing(device: None, tmp_path: Path) -> None:  # noqa: F811
    kernel, again = tuned(tmp_path / "p"), tuned(tmp_path / "q", comment="  # fast")
    assert launched(kernel) == (4, kernel.configs[3])
    assert launched(again) == (0, again.configs[3])
    assert launched(again) == (0, again.configs[3])


def test_nothing_is_compiled_for_a_measurement_that_will_not_be(device: None, tmp_path: Path) -> None:  # noqa: F811
    launched(tuned(tmp_path / "p"))
    cache, pool = session.current().cache, variants._pool
    cache.store.delete([each.id for each in cache.store.scan("triton")])
    assert pool is not None
    variants.close()
    assert launched(tuned(tmp_path / "q"))[0] == 0
    assert variants._pool is None


@pytest.mark.parametrize("launch", [{"n": 512}, {"n": 1}, {"offset": 1}], ids=str)
def test_another_specialization_is_measured(device: None, tmp_path: Path, launch: dict[str, Any]) -> None:  # noqa: F811
    launched(tuned(tmp_path / "p"))
    assert launched(tuned(tmp_path / "q"), **launch)[0] == 4


def test_a_constant_of_the_launch_counts(device: None, tmp_path: Path) -> None:  # noqa: F811
    """Triton's own key has only what `key` names."""
    text = TUNED.replace("n, BLOCK", "n, S: tl.constexpr, BLOCK").replace("* cfg.K", "* cfg.K * S")
    for name, value in VALUES.items():
        text = text.replace(f"<{name}>", value)
    found = []
    for number, scale in enumerate((1.0, 1.0, 1)):
        kernel = program(tmp_path / str(number), {"cfg.py": "K = 7.5\n", "kern.py": text})
        run = kernel.run
        kernel.run = lambda *args, run=run, scale=scale, **kwargs: run(*args, scale, **kwargs)
        found.append(launched(kernel)[0])
    assert found == [4, 0, 4]


def test_what_the_program_asked_of_triton_is_as_before(tmp_path: Path) -> None:
    kernel = tuned(tmp_path / "p")
    kcache.enable()
    assert kernel.cache_results
    kernel.cache_results = False
    kcache.disable()
    assert kernel.cache_results is False and "cache_results" not in vars(type(kernel))
