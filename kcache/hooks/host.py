"""Layer `host`: what every process works out again about this machine.

Each fact is kept under the stamps of the files that it summarises and is made again when
any of them differs. Seams: torch's and Triton's hashes of their own sources, probes of
the vector instruction set, the version of `ptxas`, and what the C++ compiler is.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kcache import source
from kcache.digest import Digest, Key, Part
from kcache.errors import Damaged
from kcache.hooks import session
from kcache.hooks.patch import Patches, require
from kcache.memo import Memo, stamp_files, stamp_tree


def remembered(name: str, stamp: Callable[[], Digest], work_out: Callable[[], bytes]) -> bytes:
    """The fact called `name`, from the store if its stamp is unchanged, else worked out and kept.

    Trouble with the store costs the saving and nothing else.
    """
    found = recall(name, stamp)
    if found is None:
        found = work_out()
        keep(name, stamp, found)
    return found


def recall(name: str, stamp: Callable[[], Digest]) -> bytes | None:
    """The kept fact called `name` under its present stamp, or None."""
    active = session.current()
    try:
        return Memo(active.cache).get(name, stamp())
    except Exception as error:
        active.trouble("host", "lookup failed", error)
        return None


def keep(name: str, stamp: Callable[[], Digest], value: bytes) -> None:
    """Keep a fact under its present stamp."""
    active = session.current()
    try:
        Memo(active.cache).put(name, stamp(), value)
    except Exception as error:
        active.trouble("host", "save failed", error)


def files(paths: Iterable[str | Path]) -> Callable[[], Digest]:
    """Stamp of single files."""
    return lambda: stamp_files([os.path.realpath(p) for p in paths])


def tree(root: str | Path, suffixes: tuple[str, ...]) -> Callable[[], Digest]:
    """Stamp of every file below `root` whose name ends in one of `suffixes`."""
    return lambda: stamp_tree(root, suffixes)


def install(patches: Patches) -> None:
    """Install the seams; raises `ShapeError` where torch or Triton look otherwise."""
    _texts(patches)
    _torch_key(patches)
    _vector_isa(patches)
    if sys.modules.get("triton") or shutil.which("nvidia-smi"):
        _triton(patches)


class Texts:
    """What a function's text means by itself, kept in the store under the text's digest. Not counted as lookups."""

    @staticmethod
    def _key(digest: Digest) -> Key:
        python = f"{sys.implementation.cache_tag} {sys.hexversion:#x}"
        return Key.of([Part.of("layer", "host"), Part("text", digest), Part.of("python", python)])

    def get(self, digest: Digest) -> bytes | None:
        """The analysis of the text with this digest, or None."""
        active = session.current()
        try:
            for candidate in active.cache.candidates("host", self._key(digest)):
                return candidate.load()
        except Damaged:
            return None  # dropped and counted where it was found; the text is analysed again
        except Exception as error:
            active.trouble("host", "lookup failed", error)
        return None

    def put(self, digest: Digest, data: bytes) -> None:
        """Queue an analysis for the store."""
        active = session.current()
        try:
            active.cache.put("host", self._key(digest), data)
        except Exception as error:
            active.trouble("host", "save failed", error)


def _texts(patches: Patches) -> None:
    before, source.MEMO = source.MEMO, Texts()

    def undo() -> None:
        source.MEMO = before

    patches.also(undo)


def _torch_key(patches: Patches) -> None:
    import torch
    from torch._inductor import codecache

    require(codecache.torch_key, "set")
    value = remembered("torch_key", tree(torch.__path__[0], (".py", ".cpp", ".ld", ".so")), codecache.torch_key)
    try:
        codecache.torch_key.set(value)
    except (AssertionError, RuntimeError):  # it was worked out just now, or before kcache
        if codecache.torch_key() != value:
            raise RuntimeError("the kept hash of torch's sources differs from torch's own") from None
    _compiler_of.cache_clear()
    patches.also(_compiler_of.cache_clear)


def _vector_isa(patches: Patches) -> None:
    import torch
    from torch._inductor.cpu_vec_isa import VecISA

    require(VecISA, "check_build", ("self", "code"))
    original = VecISA.check_build

    def check_build(self: Any, code: str) -> bool:
        asked = f"{torch.__version__} {compiler_identity()} {self.build_arch_flags()} {torch.__path__[0]} {code}"
        machine = f"{torch.backends.cpu.get_cpu_capability()} {os.uname().machine}"
        name = f"vec_isa {type(self).__name__}"
        stamp = lambda: Digest.of(f"{asked} {machine}".encode())  # noqa: E731
        return remembered(name, stamp, lambda: b"1" if original(self, code) else b"0") == b"1"

    patches.replace(VecISA, "check_build", check_build)


def compiler_identity() -> str:
    """What the C++ compiler is: its version text, not its path.

    Where the configured compiler does not run, the one that made the newest entries is
    assumed, since without a compiler nothing can be made that would differ.
    """
    from torch._inductor import config

    configured = config.cpp.cxx
    return _compiler_of(tuple(configured) if isinstance(configured, (list, tuple)) else (configured,))


@functools.lru_cache(maxsize=8)
def _compiler_of(configured: tuple[str | None, ...]) -> str:
    from torch._inductor.cpp_builder import get_compiler_version_info

    fixed: Callable[[], Digest] = lambda: Digest.of(b"last")  # noqa: E731
    for name in configured:
        path = shutil.which(name) if name else None
        if path is None:
            continue
        ask = functools.partial(lambda p: get_compiler_version_info(p).encode(), path)
        version = remembered(f"compiler {name}", files([path]), ask)
        if version:
            if recall("compiler last", fixed) is None:
                keep("compiler last", fixed, version)
            return version.decode()
    session.current().stats.count("host", "error", reason="no C++ compiler runs; the last known is assumed")
    return remembered("compiler last", fixed, lambda: b"").decode()


def _triton(patches: Patches) -> None:
    import triton
    from triton import knobs
    from triton.runtime import cache as runtime_cache

    root = Path(triton.__path__[0])
    require(runtime_cache, "triton_key", ())
    key = runtime_cache.triton_key

    @functools.lru_cache
    def triton_key() -> str:
        return remembered("triton_key", tree(root, (".py", ".so")), lambda: key().encode()).decode()

    patches.replace(runtime_cache, "triton_key", triton_key, by_value=True)
    tool = getattr(knobs, "NvidiaTool", None)
    if tool is not None:
        _ptxas(patches, tool)


def _ptxas(patches: Patches, tool: Any) -> None:
    """Ask each `ptxas` for its version once per machine instead of twice per process."""
    from triton.backends.nvidia import compiler

    require(tool, "from_path", ("path",))
    require(compiler, "get_ptxas_version", ("arch",))
    from_path, version_of = tool.from_path, compiler.get_ptxas_version

    @functools.lru_cache
    def _from_path(path: str) -> Any:
        def ask() -> bytes:
            found = from_path(path)
            return found.version.encode() if found else b""

        if not os.path.exists(path):
            return from_path(path)
        version = remembered(f"ptxas release {Path(path).name}", files([path]), ask).decode()
        return tool(path, version) if version else None

    @functools.lru_cache
    def get_ptxas_version(arch: int = 80) -> str:
        from triton import knobs

        if getattr(knobs.nvidia, "mock_ptx_version", None) is not None:
            return str(version_of(arch))
        path = compiler.get_ptxas(arch).path
        return remembered(f"ptxas {arch >= 100}", files([path]), lambda: version_of(arch).encode()).decode()

    patches.replace(tool, "from_path", staticmethod(_from_path))
    patches.replace(compiler, "get_ptxas_version", get_ptxas_version, by_value=True)
