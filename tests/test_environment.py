"""Ingredients of a key outside the program: every switch is in a part, and nothing of the user's session is."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._inductor.codecache import FxGraphCachePickler  # noqa: E402
from torch.fx.experimental import _config as shape_config  # noqa: E402

from kcache import environment  # noqa: E402
from kcache.hooks import describe  # noqa: E402


def leaf(value: Any) -> bytes:
    gm = torch.fx.GraphModule({}, torch.fx.Graph())
    return FxGraphCachePickler(gm).dumps(value)


def now() -> dict[str, str]:
    """Every part of the environment as it is, by name."""
    found = [*environment.holes((), leaf), *describe.again(leaf, lambda: "compiler")]
    return {part.name: part.digest.hex for part in found}


@contextlib.contextmanager
def called(setter: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


@contextlib.contextmanager
def assigned(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


OPERATIONS = [(b, o) for b, kinds in (("cuda", ("matmul", "conv", "rnn", "all")), ("mkldnn", ("matmul", "conv", "rnn", "all")))
              for o in kinds] + [("generic", "all")]  # fmt: skip


@contextlib.contextmanager
def precisions(change: Callable[[], None]) -> Iterator[None]:
    """Call `change`, and afterwards put every float32 precision back: torch's setters have no inverse."""
    legacy, before = torch.get_float32_matmul_precision(), [torch._C._get_fp32_precision_getter(*e) for e in OPERATIONS]
    change()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(legacy)
        for each, value in zip(OPERATIONS, before):
            torch._C._set_fp32_precision_setter(*each, value)


BACKENDS = torch.backends
TOGGLED: dict[str, Callable[[], Any]] = {
    "default dtype": lambda: called(torch.set_default_dtype, torch.float64, torch.float32),
    "matmul precision": lambda: precisions(lambda: torch.set_float32_matmul_precision("high")),
    "flash sdp": lambda: called(BACKENDS.cuda.enable_flash_sdp, False, True),
    "mem efficient sdp": lambda: called(BACKENDS.cuda.enable_mem_efficient_sdp, False, True),
    "math sdp": lambda: called(BACKENDS.cuda.enable_math_sdp, False, True),
    "cudnn sdp": lambda: called(BACKENDS.cuda.enable_cudnn_sdp, False, True),
    "reduced math sdp": lambda: called(BACKENDS.cuda.allow_fp16_bf16_reduction_math_sdp, True, False),
    "mkldnn": lambda: assigned(BACKENDS.mkldnn, "enabled", False),
    "mkldnn deterministic": lambda: assigned(BACKENDS.mkldnn, "deterministic", True),
    "cudnn": lambda: assigned(BACKENDS.cudnn, "enabled", False),
    "cudnn deterministic": lambda: assigned(BACKENDS.cudnn, "deterministic", True),
    "cudnn benchmark": lambda: assigned(BACKENDS.cudnn, "benchmark", True),
    "nnpack": lambda: called(torch._C._set_nnpack_enabled, False, True),
    "flush denormal": lambda: called(torch.set_flush_denormal, True, False),
    "backed size oblivious": lambda: assigned(shape_config, "backed_size_oblivious", True),
    "determinism": lambda: called(torch.use_deterministic_algorithms, True, False),
    "fill uninitialized memory": lambda: assigned(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "cuda matmul tf32": lambda: precisions(lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True)),
    "cuda matmul fp16": lambda: assigned(BACKENDS.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    "cuda matmul bf16": lambda: assigned(BACKENDS.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "inductor config": lambda: torch._inductor.config.patch(max_autotune=True),
    "nested inductor config": lambda: torch._inductor.config.patch({"cpp.simdlen": 128}),
}
if BACKENDS.opt_einsum.is_available():
    TOGGLED["opt_einsum"] = lambda: assigned(BACKENDS.opt_einsum, "enabled", False)

HOLES: dict[str, Callable[[], Any]] = {
    "cudnn tf32": lambda: assigned(BACKENDS.cudnn, "allow_tf32", False),
    "mkldnn matmul precision": lambda: precisions(lambda: setattr(BACKENDS.mkldnn.matmul, "fp32_precision", "bf16")),
    "sdp priority": lambda: called(torch._C._set_sdp_priority_order, [2, 1, 0, 3, 4], [1, 2, 0, 3, 4]),
    "overrideable sdp": lambda: called(torch._C._set_sdp_use_overrideable, False, True),
    "sm carveout": lambda: called(torch._C._set_sm_carveout_experimental, 4, None),
}
"""Switches without a public setter that can be put back, or with one that is new."""


@pytest.mark.parametrize("name", [*TOGGLED, *HOLES])
def test_each_switch_changes_a_part_and_changes_it_back(name: str) -> None:
    """A process-wide switch that changes compiled code is in a part by value."""
    before = now()
    try:
        toggled = {**TOGGLED, **HOLES}[name]()
    except AttributeError as error:
        pytest.skip(f"not in this torch: {error}")
    with toggled:
        changed = now()
    assert now() == before
    assert changed.keys() == before.keys()
    assert changed != before


def test_precisions_set_through_torchs_newer_interface_do_not_cost_the_key() -> None:
    """Where torch refuses to answer its legacy getter, the key still holds the precision."""
    before = now()
    with precisions(lambda: setattr(BACKENDS.mkldnn.matmul, "fp32_precision", "bf16")):
        assert now() != before


def test_the_number_of_threads_is_in_a_key_where_code_depends_on_it() -> None:
    """From torch 2.13 on its own details say whether the count matters; before, it always counts."""
    from torch._inductor.codecache import FxGraphHashDetails

    with called(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()):
        changed = environment._threads()
    if hasattr(FxGraphHashDetails, "_may_generate_cpu_cpp_code"):
        assert changed is None
    else:
        assert changed == torch.get_num_threads() + 1


def test_variables_that_the_user_names_are_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """`key_env` patterns choose variables by name; others are not in the part."""
    monkeypatch.setenv("LAB_ONE", "1")
    monkeypatch.setenv("OTHER", "1")
    assert environment.chosen(["LAB_*"]) == {"LAB_ONE": "1"}
    one = environment.holes(["LAB_*"], leaf)[-1].digest
    monkeypatch.setenv("OTHER", "2")
    assert environment.holes(["LAB_*"], leaf)[-1].digest == one
    monkeypatch.setenv("LAB_ONE", "2")
    assert environment.holes(["LAB_*"], leaf)[-1].digest != one


@pytest.mark.parametrize("name", ["TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "PTXAS_OPTIONS", "DISABLE_PTXAS_OPT"])
def test_variables_that_triton_reads_are_a_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that Triton declares, and those that it reads without declaring them."""
    pytest.importorskip("triton")
    monkeypatch.delenv(name, raising=False)
    before = environment.triton_environment()
    monkeypatch.setenv(name, "1")
    assert environment.triton_environment() != before


@pytest.mark.parametrize(
    "one, other",
    [
        (1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ("1", b"1"), ([1], (1,)), ([1, 2], [2, 1]), ([[1], 2], [1, [2]]),
        (["ab"], ["a", "b"]), ({"a": 1}, {"a": 2}), ({"a": 1}, [("a", 1)]), ({1}, [1]), (None, "None"), ({}, set()),
    ],
    ids=str,
)  # fmt: skip
def test_values_of_different_meaning_have_different_bytes(one: Any, other: Any) -> None:
    """No two values that a compiler could tell apart are encoded alike."""
    assert environment.stable(one, leaf) != environment.stable(other, leaf)


def test_order_of_dicts_and_sets_is_left_out() -> None:
    """Containers without an order of their own are encoded without one."""
    assert environment.stable({"a": 1, "b": 2}, leaf) == environment.stable({"b": 2, "a": 1}, leaf)
    assert environment.stable({"x", "y", "z"}, leaf) == environment.stable(frozenset("zyx"), leaf)


def test_every_attribute_of_a_details_object_is_a_part_unless_replaced() -> None:
    """An ingredient that a release of torch adds gets a part without anybody listing it."""
    details = types.SimpleNamespace(old=1, added={"b": 2}, gm=object())
    parts = {part.name: part for part in environment.of_details(details, leaf, ["gm"])}
    assert sorted(parts) == ["added", "old"]
    assert parts["added"].text.decode().startswith("b ")


# --- what stays out ---

PROGRAM = """
import json, sys
from tests.test_environment import now
print(json.dumps(now()))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same parts, printed by two processes that differ in all that a key must not see."""
    root = Path(__file__).resolve().parents[1]
    printed = []
    for i, seed in enumerate(("1", "2")):
        home = tmp_path_factory.mktemp(f"home{i}")
        own = {
            "HOME": str(home), "PWD": str(home), "TMPDIR": str(home), "USER": f"user{i}", "LOGNAME": f"user{i}",
            "HOSTNAME": f"host{i}", "LANG": ("C", "de_DE.UTF-8")[i], "LC_ALL": ("C", "C.UTF-8")[i],
            "TZ": ("UTC", "Asia/Tokyo")[i], "PYTHONHASHSEED": seed, "RANK": str(i), "LOCAL_RANK": str(i),
            "WORLD_SIZE": "2", "MASTER_PORT": f"2950{i}", "COLUMNS": f"8{i}", "XDG_CACHE_HOME": str(home),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "i"), "TRITON_CACHE_DIR": str(home / "t"), "TRITON_HOME": str(home),
            "KCACHE_DIR": str(home / "k"), "PYTHONPATH": str(root),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**os.environ, **own}, cwd=home, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines()[-1])
    return printed[0], printed[1]


@pytest.mark.slow
def test_home_folder_locale_zone_hash_seed_pid_and_rank_are_left_out(elsewhere: tuple[str, str]) -> None:
    """Two processes that differ in all of these print the same parts, byte for byte."""
    one, other = map(json.loads, elsewhere)
    assert {name for name in one if one[name] != other[name]} == set()
    assert elsewhere[0] == elsewhere[1]


# --- every switch of a release is known ---

IN_A_PART = {
    "_get_cpu_capability": "cpu_capability",
    "_get_cublas_allow_bf16_reduced_precision_reduction": "cuda_matmul_settings",
    "_get_cublas_allow_fp16_reduced_precision_reduction": "cuda_matmul_settings",
    "_get_cublas_allow_tf32": "cuda_matmul_settings",
    "_get_cudnn_benchmark": "cudnn",
    "_get_cudnn_deterministic": "cudnn",
    "_get_cudnn_enabled": "cudnn",
    "_get_cudnn_sdp_enabled": "cudnn_sdp",
    "_get_deterministic_algorithms": "deterministic_algorithms_settings",
    "_get_deterministic_algorithms_warn_only": "deterministic_algorithms_settings",
    "_get_deterministic_fill_uninitialized_memory": "deterministic_algorithms_settings",
    "_get_flash_sdp_enabled": "flash_sdp",
    "_get_float32_matmul_precision": "matmul_precision",
    "_get_math_sdp_allow_fp16_bf16_reduction": "reduced_math_sdp",
    "_get_math_sdp_enabled": "math_sdp",
    "_get_mem_efficient_sdp_enabled": "mem_efficient_sdp",
    "_get_mkldnn_deterministic": "mkldnn",
    "_get_mkldnn_enabled": "mkldnn",
    "_get_nnpack_enabled": "nnpack",
    "_get_qengine": "quantized_engine",
}
"""Getter -> the switch or part that holds its value."""

NOT_YET = {
    "_get_cudnn_allow_tf32": "cudnn tf32",
    "_get_onednn_allow_tf32": "mkldnn matmul precision",
    "_get_overrideable_sdp_enabled": "overrideable sdp",
    "_get_sdp_priority_order": "sdp priority",
    "_get_sm_carveout_experimental": "sm carveout",
}
"""Getter -> its row in `HOLES`, where a test fails until a part holds it."""

EAGER = "read by the operator when it runs, never by the compiler"
COUNTS = "counts or describes, switches nothing"
SCRIPT = "TorchScript alone"
LEFT_OUT = {
    "_get_DTensor_sharding_propagator_cache_stats": COUNTS,
    "_get_accelerator": "torch's system part and the device part name the device",
    "_get_all_dtypes": COUNTS,
    "_get_autograd_fallback_mode": "a warning",
    "_get_backcompat_broadcast_warn": "a warning",
    "_get_backcompat_keepdim_warn": "a warning",
    "_get_blas_default_backend": EAGER,
    "_get_blas_preferred_backend": EAGER,
    "_get_caught_jit_exception_class_name": SCRIPT,
    "_get_caught_jit_exception_original_msg": SCRIPT,
    "_get_cpu_allow_fp16_reduced_precision_reduction": EAGER,
    "_get_cublas_allow_fp16_accumulation": EAGER,
    "_get_cudnn_depthwise_kernel": EAGER,
    "_get_default_device": "Dynamo writes the device into the graph",
    "_get_dtensor_allow_implicit_replication": "changes the graph that is traced, which is in the key",
    "_get_fa3_sdp_enabled": EAGER,
    "_get_graph_exec_group": SCRIPT,
    "_get_graph_executor_optimize": SCRIPT,
    "_get_linalg_preferred_backend": EAGER,
    "_get_max_operator_version": "fixed per release",
    "_get_miopen_immediate": EAGER,
    "_get_operator_version_map": "fixed per release",
    "_get_privateuse1_backend_name": "the device in the graph has that name",
    "_get_rocm_fa_preferred_backend": EAGER,
    "_get_thread_name": COUNTS,
    "_get_torch_function_state": "a guard of Dynamo's",
    "_get_tracing_state": SCRIPT,
    "_get_upgraders_entry_map": SCRIPT,
    "_get_upgraders_map_size": SCRIPT,
    "_get_version_calculator_flag": SCRIPT,
    "_get_warnAlways": "a warning",
}
"""Getter -> why no part needs it."""

BACKEND_MODULES = {
    "cpu": "cpu_capability", "cuda": "its flags are getters of torch._C", "cudnn": "idem", "cusparselt": COUNTS,
    "kleidiai": "fixed per build", "mha": "changes the graph that is traced", "miopen": EAGER, "mkl": "fixed per build",
    "mkldnn": "mkldnn", "mps": COUNTS, "nnpack": "nnpack", "openmp": "fixed per build", "opt_einsum": "opt_einsum",
    "python_native": EAGER, "quantized": "quantized_engine",
    "m": "the module itself under another name", "xeon": "a launcher", "coreml": "an exporter", "xnnpack": "fixed per build",
    "_coreml": "an exporter", "_nnapi": "an exporter",
}  # fmt: skip
"""Module below `torch.backends` -> the switch that holds it, or why none does."""


def getters() -> list[str]:
    """Names of `torch._C._get_*` that answer without arguments: process-wide state."""
    found = []
    for name in sorted(n for n in dir(torch._C) if n.startswith("_get_")):
        try:
            getattr(torch._C, name)()
        except TypeError:
            continue
        except RuntimeError:
            pass
        found.append(name)
    return found


def test_every_process_wide_getter_of_torch_is_classified() -> None:
    """A getter that a release adds fails here until somebody says which part holds it or why none must."""
    known = {**IN_A_PART, **NOT_YET, **LEFT_OUT}
    assert len(known) == len(IN_A_PART) + len(NOT_YET) + len(LEFT_OUT)
    assert sorted(set(getters()) - known.keys()) == []


def test_the_table_of_getters_names_parts_and_rows_that_exist() -> None:
    """No row of the table points to a switch that is gone."""
    parts = {*(name for name, _ in environment.SWITCHES), *now()}
    assert set(IN_A_PART.values()) <= parts
    assert set(NOT_YET.values()) <= HOLES.keys()


def test_every_module_of_backends_is_classified() -> None:
    """A back end that a release adds fails here until somebody says what it switches."""
    modules = {n for n in dir(torch.backends) if isinstance(getattr(torch.backends, n), types.ModuleType)}
    modules -= {"types", "sys", "torch", "contextlib"}
    assert sorted(modules - BACKEND_MODULES.keys()) == []
