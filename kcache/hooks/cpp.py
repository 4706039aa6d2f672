"""Layer `cpp`: shared objects of Inductor's C++ backend.

Torch finds a shared object by its command line, and to know the command line it asks the
compiler for its version, probes instruction sets in children and preprocesses a header:
eleven processes for a full hit. Here an object is found by what it was made from: both
sources, every argument of the call, the settings, what the compiler is and what the CPU
can do. On a miss torch compiles as always and the object that it loads is stored, also one
that this process had loaded before.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcache.digest import Key, Part
from kcache.environment import settings_part
from kcache.hooks import guarded, host, session
from kcache.hooks.patch import Patches, require

READ_BY_THE_BUILDER = ("cpp.", "cpp_", "aot_inductor.", "test_configs.")
"""Settings that torch's C++ builder reads. All others act through the source, which is in the key whole; torch
patches some of those while it compiles and not while it loads."""

_local = threading.local()


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    from torch._inductor import codecache

    base, bindings = codecache.CppCodeCache, codecache.CppPythonBindingsCodeCache
    require(base, "load_async", ("cls", "main_code", "device_type", "submit_fn", "extra_flags", "optimized_code"))
    require(base, "_load_library", ("cls", "path", "key"))
    load_async = vars(base)["load_async"].__func__
    load_library = vars(base)["_load_library"].__func__
    added: list[tuple[Any, str]] = []

    def _load_library(cls: Any, path: str, key: str) -> Any:
        seen = getattr(_local, "loaded", None)
        if seen is not None:
            seen.append(path)
        return load_library(cls, path, key)

    @functools.wraps(load_async)  # its parameters are asked for below
    def _load_async(cls: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        if cls not in (base, bindings) or not session.caching():
            return load_async(cls, *args, **kwargs)  # type: ignore[no-any-return]
        active = session.current()
        try:
            parts = parts_of(cls, args, kwargs)
            key = Key.of(parts)
            loaded = cls.cache.get(key.hex)
            if loaded is None:
                loaded = found(cls, key)
            if loaded is None:
                active.missed("cpp", key, parts)
        except Exception as error:
            active.trouble("cpp", "lookup failed", error)
            return load_async(cls, *args, **kwargs)  # type: ignore[no-any-return]
        if loaded is None:
            loaded = _storing(key, parts, load_async(cls, *args, **kwargs))
        cls.cache[key.hex] = loaded
        added.append((cls, key.hex))
        return loaded  # type: ignore[no-any-return]

    def forget() -> None:
        """Under another store, what was loaded is to be stored again."""
        for cls, key in added:
            cls.cache.pop(key, None)

    patches.replace(base, "_load_library", classmethod(_load_library))
    patches.replace(base, "load_async", classmethod(_load_async))
    patches.also(forget)


def parts_of(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Part]:
    """What the object that `cls.load_async(*args, **kwargs)` makes depends on; their fold is its key."""
    import inspect
    import pickle

    import torch
    from torch._inductor import codecache, config

    bound = inspect.signature(codecache.CppCodeCache.load_async).bind(*args, **kwargs)
    bound.apply_defaults()
    asked = {k: v for k, v in bound.arguments.items() if k not in ("submit_fn", "main_code")}
    every = config.save_config_portable(ignore_private_configs=False)
    settings = {k: v for k, v in every.items() if k.startswith(READ_BY_THE_BUILDER)}
    settings["cpp.cxx"] = host.compiler_identity()
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    flags = {str(k): v for k, v in capabilities.items() if isinstance(v, bool)}
    machine = {"capability": torch.backends.cpu.get_cpu_capability(), "arch": os.uname().machine, **flags}
    flavour = {"class": cls.__qualname__, **cls.cpp_compile_command_flags}  # type: ignore[attr-defined]
    return [
        Part.of("layer", "cpp"),
        Part.of("source", bound.arguments["main_code"], readable=True),
        Part.of("torch", codecache.torch_key()),
        settings_part("class", flavour, pickle.dumps),
        settings_part("arguments", asked, pickle.dumps),
        settings_part("inductor_config", settings, pickle.dumps),
        settings_part("machine", machine, pickle.dumps),
    ]


def found(cls: Any, key: Key) -> Callable[[], Any] | None:
    """A loader of the stored object, or None. The object is written to a file only to be mapped."""
    from torch._inductor.runtime.runtime_utils import cache_dir

    content = session.current().cache.get("cpp", key)
    if content is None:
        return None
    path = Path(cache_dir()) / key.hex[:2] / f"{key.hex}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    try:
        library = cls._load_library(str(path), key.hex)
    except Exception as error:
        if not guarded.blames_the_entry(error):
            raise
        path.unlink(missing_ok=True)
        session.current().spoiled("cpp", key, "", "entry does not load", error)
        return None
    return lambda: library


def _storing(key: Key, parts: list[Part], load: Callable[[], Any]) -> Callable[[], Any]:
    """`load`, which also stores the object that it maps first."""

    def load_and_store() -> Any:
        _local.loaded = []
        try:
            library = load()
        finally:
            paths, _local.loaded = _local.loaded, None
        active = session.current()
        for path in paths or filter(None, [getattr(library, "__file__", None) or getattr(library, "_name", None)]):
            try:
                active.cache.put("cpp", key, Path(path).read_bytes(), parts=parts)
            except Exception as error:
                active.trouble("cpp", "save failed", error)
        return library

    return load_and_store
