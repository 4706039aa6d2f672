"""A machine that has a GPU as far as importing kernels goes. Nothing is launched on it.

Packages ask at import how many multiprocessors there are, which capability, which vendor;
the answers here are those of an H100. A package whose `__init__` needs something that is not
installed keeps what it had defined by then, since its other modules may do without.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

_PROPERTIES: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "total_memory": 80 << 30, "multi_processor_count": 132,
    "warp_size": 32, "shared_memory_per_block": 48 << 10, "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10, "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536, "L2_cache_size": 50 << 20, "gcnArchName": "",
}  # fmt: skip


class _Driver:
    """What a kernel's module asks of Triton's active driver."""

    utils = types.SimpleNamespace(
        get_device_properties=lambda device=0: {
            "max_shared_mem": 227 << 10, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32,
            "sm_clock_rate": 1980000, "mem_clock_rate": 2619000, "mem_bus_width": 5120,
        }
    )  # fmt: skip

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return 9, 0

    def get_benchmarker(self) -> Any:
        return lambda function, quantiles=None, **options: [0.0, 0.0, 0.0]


def install() -> None:
    """Make this process such a machine, for good."""
    import torch
    import triton

    triton.runtime.driver.set_active(_Driver())
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0),
        "get_device_name": _PROPERTIES["name"], "get_device_properties": types.SimpleNamespace(**_PROPERTIES),
        "is_bf16_supported": True, "get_arch_list": ["sm_90"], "mem_get_info": (70 << 30, 80 << 30),
        "synchronize": None, "_lazy_init": None, "current_stream": types.SimpleNamespace(cuda_stream=0),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *a, answer=answer, **k: answer)
    torch.version.cuda = "12.8"
    _to_host().__enter__()


def _to_host() -> Any:
    """A mode in which a tensor that is made on the GPU is made in main memory: some modules make one at import."""
    import torch
    from torch.overrides import TorchFunctionMode

    class ToHost(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            if function is torch.Tensor.cuda:
                return args[0]
            return function(*args, **kwargs)

    return ToHost()


class Tolerant(importlib.abc.MetaPathFinder):
    """Finds the packages `tops`; a `__init__` that fails leaves a package behind, and its error in `failed`."""

    def __init__(self, tops: set[str]) -> None:
        self.tops = tops
        self.failed: dict[str, str] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] not in self.tops:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is not None:
            spec.loader.exec_module = self._keeping(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _keeping(self, execute: Any) -> Any:
        def run(module: types.ModuleType) -> None:
            try:
                execute(module)
            except Exception as error:
                self.failed[module.__name__] = f"{type(error).__name__}: {error}"

        return run

    def __enter__(self) -> Tolerant:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
