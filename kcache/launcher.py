"""The stack of objects that launches a kernel, read as data.

`Autotuner`, `Heuristics`, library wrappers and at the bottom a `JITFunction` are told
apart by shape: a wrapper has `.fn`, a jitted function has a text. Every field of each
counts, so a field that a newer Triton adds changes the key instead of getting lost; the
exceptions are listed here, each with its reason.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from kcache.watch import MISSING, Watch

_CACHES = "results and locks: made while running, never read by the compiler"
_DERIVED = "made from a field that counts"
_IDENTITY = "names, positions and documentation of the Python function"

IGNORED: Mapping[str, str] = {
    # Autotuner
    "cache": _CACHES, "nargs": _CACHES, "bench_time": _CACHES, "best_config": _CACHES, "configs_timings": _CACHES,
    "restore_copies": _CACHES, "base_fn": _DERIVED, "arg_names": _DERIVED, "do_bench": _DERIVED,
    "cache_results": "where timings are kept",
    # JITFunction
    "hash": _CACHES, "_hash_lock": _CACHES, "used_global_vals": _CACHES, "device_caches": _CACHES, "kernel": _CACHES,
    "kernel_cache": _CACHES, "CompiledKernel": _CACHES, "compile": _CACHES, "ASTSource": _CACHES, "run": _DERIVED,
    "signature": _DERIVED, "params": _DERIVED, "constexprs": _DERIVED, "raw_src": _DERIVED, "src": _DERIVED,
    "_src": _DERIVED,
    "_fn_name": _IDENTITY, "starting_line_number": _IDENTITY, "__doc__": _IDENTITY, "__name__": _IDENTITY,
    "__qualname__": _IDENTITY, "__module__": _IDENTITY, "module": _IDENTITY, "__globals__": _IDENTITY,
    "__wrapped__": _IDENTITY, "__annotations__": _IDENTITY, "__dict__": _IDENTITY, "__type_params__": _IDENTITY,
    # torch's TraceableTritonKernelWrapper
    "kernel_idx": "index into a process-local table", "grid": "of one launch, which the graph holds",
}  # fmt: skip
"""Fields of launchers that do not count, and why."""

BODY = ("fn", "kernel")
"""Fields that hold the next object of the stack."""


def is_jitted(value: Any) -> bool:
    """Whether `value` is a jitted function: one whose text Triton compiles."""
    cls = _triton("JITFunction")
    return cls is not None and isinstance(value, cls)


def is_jit_callable(value: Any) -> bool:
    """Whether `value` is a jitted or a constexpr function."""
    cls = _triton("JITCallable")
    return is_jitted(value) if cls is None else isinstance(value, cls)


def _triton(name: str) -> Any:
    return getattr(sys.modules.get("triton.runtime.jit"), name, None)


def inner(value: Any) -> Any:
    """The next object below a wrapper, or None if `value` wraps no kernel."""
    if isinstance(value, (types.FunctionType, type, types.ModuleType)) or is_jit_callable(value):
        return None
    own = getattr(value, "__dict__", None)
    if type(own) is not dict:
        return None
    for field in BODY:
        below = own.get(field)
        if is_jit_callable(below) or (below is not None and below is not value and inner(below) is not None):
            return below
        if field == "fn" and isinstance(below, types.FunctionType) and _is_interface(value):
            return below
    return None


def _is_interface(value: Any) -> bool:
    cls = _triton("KernelInterface")
    return cls is not None and isinstance(value, cls)


def bottom(value: Any) -> Any:
    """The function at the end of the stack; `value` itself if it wraps nothing."""
    while (below := inner(value)) is not None:
        value = below
    return value


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Fields of one launcher that count, in their own order, the next object of the stack left out."""
    below = inner(value)
    for name, field in vars(value).items():
        if name not in IGNORED and not (name in BODY and (field is below or is_jit_callable(value))):
            yield name, field


def known_fields(value: Any) -> set[str]:
    """Names under which `value` may keep things without its fingerprint changing."""
    return set(vars(value)) | set(IGNORED)


def is_config(value: Any) -> bool:
    """Whether `value` is one of an autotuner's configurations."""
    cls = getattr(sys.modules.get("triton.runtime.autotuner"), "Config", None)
    return cls is not None and isinstance(value, cls)


def parameter_facts(param: Any) -> str:
    """What Triton takes from one parameter's annotation; defaults are encoded elsewhere."""
    facts = []
    if param.is_constexpr:
        facts.append("constexpr")
    if param.is_const:
        facts.append("const")
    if kind := getattr(param, "annotation_type", ""):
        facts.append(repr(kind))
    if param.do_not_specialize:
        facts.append("not specialized")
    if getattr(param, "do_not_specialize_on_alignment", False):
        facts.append("alignment not specialized")
    return f"{param.name}: {' '.join(facts)}"


def location(jitted: Any) -> str:
    """File and line of a kernel; in the binary only where `device_assert` is compiled under `debug`."""
    return f"{jitted.fn.__code__.co_filename}:{jitted.starting_line_number}"


def debug(value: Any) -> bool:
    """Whether one launcher's own settings compile with `debug`."""
    own = vars(value)
    return bool(own.get("debug")) or any(getattr(c, "kwargs", {}).get("debug") for c in own.get("configs") or ())


def debugging(watch: Watch) -> bool:
    """Whether the process compiles every kernel with `debug`."""
    runtime = getattr(sys.modules.get("triton.knobs"), "runtime", None)
    return runtime is not None and watch.attribute(runtime, "debug") not in (None, False, MISSING)
