"""Variants of an autotuned kernel, compiled in worker processes before Triton asks for them.

Compiling needs no GPU, but Triton asks a driver for the device's target: the driver here is a fake that names one, and
kernels are compiled by `warmup`, which launches nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402

import kcache  # noqa: E402
from kcache.hooks import variants  # noqa: E402
from tests.test_build import code  # noqa: E402
from tests.test_link import HEAD, program  # noqa: E402

TUNED = HEAD + """
import cfg
@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 4)], key=["n"])
@triton.jit
def kern(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * cfg.K, mask=offs < n)
"""


class Driver:
    """A driver of no device."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> Any:
        return torch.device("cpu")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KCACHE_JOBS", "2")
    monkeypatch.setattr(driver, "_active", Driver())
    kcache.enable()
    yield
    kcache.disable()


@pytest.fixture
def ptxas(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each start of the assembler by this process, but for its version."""
    started: list[str] = []
    popen = subprocess.Popen.__init__

    def init(self: Any, args: Any, *rest: Any, **keywords: Any) -> None:
        if "ptxas" in str(args[0]) and "--version" not in args:
            started.append(str(args[0]))
        popen(self, args, *rest, **keywords)

    monkeypatch.setattr(subprocess.Popen, "__init__", init)
    return started


def tuned(folder: Path, constant: str = "7.5") -> Any:
    return program(folder, {"cfg.py": f"K = {constant}\n", "kern.py": TUNED})


def warm(kernel: Any) -> list[Any]:
    x = torch.ones(256)
    return kernel.warmup(x, torch.empty_like(x), 256, grid=(1,))  # type: ignore[no-any-return]


def counts(layer: str) -> dict[str, int]:
    found = kcache.stats().layers.get(layer)
    return dict(found.reasons) if found else {}


def test_workers_compile_what_triton_then_loads(device: None, ptxas: list[str], tmp_path: Path) -> None:
    made = warm(tuned(tmp_path / "p"))
    assert ptxas == []
    kcache.disable()
    (tmp_path / "triton").rename(tmp_path / "before")
    stock = warm(tuned(tmp_path / "q"))
    assert len(made) == len(stock) == 4
    for ours, theirs in zip(made, stock):
        assert code(ours.asm["cubin"]) == code(theirs.asm["cubin"])
        assert ours.metadata.num_warps == theirs.metadata.num_warps
    assert len(ptxas) == 4


def test_one_that_is_missing_is_left_to_triton(device: None, tmp_path: Path) -> None:
    kernel = tuned(tmp_path / "p")
    kernel.configs = kernel.configs[:1]
    warm(kernel)
    assert variants._pool is None


def test_what_is_stored_starts_no_worker(device: None, tmp_path: Path) -> None:
    warm(tuned(tmp_path / "p"))
    kcache.disable()
    (tmp_path / "triton").rename(tmp_path / "before")
    kcache.enable()
    warm(tuned(tmp_path / "q"))
    assert variants._pool is None


def test_a_worker_that_fails_leaves_the_error_to_triton(device: None, tmp_path: Path) -> None:
    kernel = tuned(tmp_path / "p", "'not a number'")
    with pytest.raises(triton.CompilationError):
        warm(kernel)
    assert variants._pool is not None


def test_a_program_that_watches_compiles_is_left_alone(device: None, tmp_path: Path) -> None:
    seen = []
    kernel = tuned(tmp_path / "p")
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_post_compile_hook = lambda **keywords: seen.append(keywords["repr"])
        warm(kernel)
    assert len(seen) == 4 and variants._pool is None
