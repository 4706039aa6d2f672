"""User kernels in Triton's own key, launched by hand or from Inductor's generated code.

Triton's key of a kernel takes its text with comments and its starting line, and leaves
out what a builtin alias, a dtype global or a class constant points to. For kernels that
the program launches, the closure's fingerprint stands in for both. A kernel whose closure
cannot be followed keeps Triton's key and is not stored.

Kernels that Inductor prints into generated modules are compiled in worker processes,
where nothing is patched: there the kernel's digest is written into the printed text, as a
comment, so that Triton's key differs wherever the closure does.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

from kcache import constants
from kcache.closure import fingerprint
from kcache.digest import Key, Part
from kcache.errors import Opaque
from kcache.hooks import session
from kcache.hooks.patch import Patches, require

_local = threading.local()

GENERATED = "torch._inductor.runtime.compile_tasks."
"""Module names of what Inductor generates begin so."""


def install(patches: Patches) -> None:
    """Install the seams; raises `ShapeError` where torch or Triton look otherwise."""
    from torch._inductor.codegen import wrapper
    from triton.runtime import cache

    printer = "user_defined_triton_kernel_transitive_closure_source_code"
    require(cache, "get_cache_key", ("src", "backend", "backend_options", "env_vars"))
    require(wrapper, printer, ("kernel",))
    key_of, print_kernel = cache.get_cache_key, getattr(wrapper, printer)

    def get_cache_key(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> str:
        theirs = key_of(src, backend, backend_options, env_vars)
        _local.stored = True
        if not is_user_source(src):
            return theirs  # type: ignore[no-any-return]
        try:
            ours = source_key(src, located=bool(getattr(backend_options, "debug", False)))
        except Opaque as opaque:
            _local.stored = False
            session.current().bypass("triton", str(opaque))
            return theirs  # type: ignore[no-any-return]
        except Exception as error:
            _local.stored = False
            session.current().trouble("triton", "key failed", error)
            return theirs  # type: ignore[no-any-return]
        rest = f"{backend.hash()}-{backend_options.hash()}-{sorted(env_vars.items())}"
        return f"{cache.triton_key()}-{ours.hex}-{rest}"

    def transitive_closure_source_code(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        printed = print_kernel(kernel, *args, **kwargs)
        try:
            return with_digest(printed, fingerprint(kernel).digest.hex) if isinstance(printed, str) else printed
        except Exception as error:
            session.current().trouble("fx", "kernel text cannot be marked", error)
            return printed

    patches.replace(cache, "get_cache_key", get_cache_key, by_value=True)
    patches.replace(wrapper, printer, transitive_closure_source_code, by_value=True)


def stored() -> bool:
    """Whether the compile whose key this thread made last may be kept in the store."""
    return getattr(_local, "stored", True)


def is_user_source(src: Any) -> bool:
    """Whether `src` is the AST of a kernel that the program itself launches."""
    function = getattr(getattr(src, "fn", None), "fn", None)
    name = getattr(function, "__globals__", {}).get("__name__", "")
    return function is not None and not name.startswith(GENERATED)


def source_key(src: Any, *, located: bool = False) -> Key:
    """Key of a kernel's source under one specialization: closure, signature, typed constants, attributes.

    `located` adds the file and line of assertions, which `debug` bakes into the binary.
    Raises `Opaque` where the kernel, or a function among its constants, cannot be followed.
    """
    attributes = sorted((str(k), str(v)) for k, v in src.attrs.items())
    values = {str(k): v for k, v in src.constants.items()}
    return Key.of(
        [
            Part("kernel", _followed(src.fn)),
            Part.of("signature", repr(sorted(src.signature.items()))),
            Part.of("constants", constants.encode(values, lambda value: f"function {_followed(value).hex}")),
            Part.of("attributes", repr(attributes)),
            Part.of("locations", repr(fingerprint(src.fn).locations) if located else ""),
        ]
    )


def _followed(value: Any) -> Any:
    found = fingerprint(value)
    if found.opaque:
        raise found.opaque[0]
    return found.digest


def with_digest(text: str, digest: str) -> str:
    """`text` with a comment that names `digest` at the end of its first function's last line."""
    first = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    lines = text.split("\n")
    lines[(first.end_lineno or first.lineno) - 1] += f"  # kcache {digest}"
    return "\n".join(lines)
