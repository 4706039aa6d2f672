"""User kernels in Triton's own key, launched by hand or from Inductor's generated code.

Triton's key of a kernel takes its text with comments and its starting line, and leaves
out what a builtin alias, a dtype global or a class constant points to. For kernels that
the program launches, the closure's fingerprint stands in for both. A kernel whose closure
cannot be followed keeps Triton's key and is not stored.

Kernels that Inductor prints into generated modules go by their text (`kcache.hooks.printed`).
"""

from __future__ import annotations

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
    from triton.runtime import cache

    require(cache, "get_cache_key", ("src", "backend", "backend_options", "env_vars"))
    key_of = cache.get_cache_key

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

    patches.replace(cache, "get_cache_key", get_cache_key, by_value=True)


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
