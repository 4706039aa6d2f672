"""User kernels in Triton's own key, launched by hand or from Inductor's generated code.

Triton's key of a kernel takes its text with comments and its starting line, and leaves
out what a builtin alias, a dtype global or a class constant points to. For kernels that
the program launches, the closure's fingerprint stands in for both. A kernel whose closure
cannot be followed keeps Triton's key and is not stored.

Kernels that Inductor prints into generated modules go by their text (`kcache.hooks.printed`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kcache import constants, listing
from kcache.closure import fingerprint
from kcache.digest import Digest, Key, Part
from kcache.errors import Opaque
from kcache.hooks import session
from kcache.hooks.patch import Patches, require

_local = threading.local()


@dataclass(frozen=True)
class Asked:
    """The last key that Triton asked for in a thread, and what of."""

    hash: str
    source: Any
    """Triton's `ASTSource`, or the source of an IR file."""
    identity: str
    """What stands for the source in the key."""
    backend: Any
    options: Any
    environment: dict[str, str]
    user: bool
    """Whether it is a kernel that the program itself launches."""

    def parts(self) -> list[Part]:
        """What the hash stands for, named, so that a miss can be explained; the hash itself is Triton's.

        An IR file has no parts but its text's identity.
        """
        from triton.runtime.cache import triton_key

        function = getattr(self.source, "fn", None)
        if function is None:
            return [Part.of("source", self.identity), *self._settings()]
        name = str(self.source.name)
        if self.user:
            found = fingerprint(function)
            kernel = Part(f"kernel 0 {name}", found.digest, found.listing)
        else:  # printed by Inductor; its text is all of it
            kernel = Part.of(f"kernel 0 {name}", function.src, readable=True)
        return [kernel, *self._specialization(), *self._settings(), Part.of("triton", triton_key())]

    def _specialization(self) -> list[Part]:
        names = self.source.fn.arg_names

        def spelled(path: Any) -> str:
            head, *rest = path if isinstance(path, tuple) else (path,)
            return ".".join([names[head] if isinstance(head, int) else str(head), *map(str, rest)])

        attributes = {spelled(path): value for path, value in self.source.attrs.items()}
        values = {spelled(path): getattr(value, "value", value) for path, value in self.source.constants.items()}
        return [
            _table("signature", {str(k): str(v) for k, v in self.source.signature.items()}),
            _table("constants", values),
            _table("attributes", attributes),
        ]

    def _settings(self) -> list[Part]:
        target = self.backend.target
        where = {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size}
        return [
            _table("target", {**where, "tools": self.backend.hash()}),
            _table("options", self.options.__dict__, self.options.hash()),
            _table("triton_environment", self.environment),
        ]


def _table(name: str, values: Mapping[str, Any], identity: str = "") -> Part:
    """Settings as a part. `identity` stands for values that are not plain, such as the paths of libraries."""
    told = listing.shown if identity else repr
    rows = [(key, Digest.of(told(value).encode()), listing.shown(value)) for key, value in sorted(values.items())]
    text = listing.settings(rows)
    return Part(name, Digest.of(f"{text}\n{identity}".encode()), text.encode())


GENERATED = "torch._inductor.runtime.compile_tasks."
"""Module names of what Inductor generates begin so."""


def install(patches: Patches) -> None:
    """Install the seams; raises `ShapeError` where torch or Triton look otherwise."""
    from triton.runtime import cache

    require(cache, "_base32", ("key",))
    require(cache, "get_cache_key", ("src", "backend", "backend_options", "env_vars"))
    key_of = cache.get_cache_key

    def get_cache_key(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> str:
        _local.asked = None
        key = key_of(src, backend, backend_options, env_vars)
        user = is_user_source(src)
        try:
            identity = src.hash()
            if user:
                identity = source_key(src, located=bool(getattr(backend_options, "debug", False))).hex
                settings = f"{backend.hash()}-{backend_options.hash()}-{sorted(env_vars.items())}"
                key = f"{cache.triton_key()}-{identity}-{settings}"
        except Opaque as opaque:
            session.current().bypass("triton", str(opaque))
            return key  # type: ignore[no-any-return]
        except Exception as error:
            session.current().trouble("triton", "key failed", error)
            return key  # type: ignore[no-any-return]
        digest = hashlib.sha256(key.encode()).hexdigest()
        _local.asked = Asked(digest, src, identity, backend, backend_options, dict(env_vars), user)
        return key  # type: ignore[no-any-return]

    patches.replace(cache, "get_cache_key", get_cache_key, by_value=True)


def ask(source: Any, backend: Any, options: Any) -> Asked | None:
    """What Triton would ask for to compile `source`; None where that cannot be followed."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime import cache

    cache.get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
    return last()


def asked(folder: str) -> Asked | None:
    """What this thread asked for last, if its folder in Triton's cache is `folder` and it can be followed."""
    found = last()
    return found if found is not None and _folder(found.hash) == folder else None


def last() -> Asked | None:
    """What this thread asked for last, if that can be followed."""
    return getattr(_local, "asked", None)


def _folder(digest: str) -> str:
    from triton.runtime import cache

    return cache._base32(digest)  # type: ignore[no-any-return]


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
