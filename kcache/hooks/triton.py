"""Layer `triton`: artifact groups of Triton's own compiler, and the C modules that it builds.

Triton asks a cache manager for the files of a compile by the hash of all that it depends
on. The manager here keeps Triton's files where they are expected (the launcher opens their
paths) and the store beside them: what is missing on disk is written out from the store,
what Triton writes is stored as one entry per group, each binary under its own digest.

The manager is set in this process only, never in the environment, where interpreters
without kcache would stumble over it.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

from triton.runtime.cache import FileCacheManager

from kcache import group
from kcache.digest import Key, Part
from kcache.hooks import kernels, recipes, session, variants
from kcache.hooks.patch import Patches, require

GROUP = "__grp__"

EXPECTED = {
    "__init__": ("self", "key", "override", "dump"),
    "get_file": ("self", "filename"),
    "put": ("self", "data", "filename", "binary"),
    "get_group": ("self", "filename"),
    "put_group": ("self", "filename", "group"),
}
"""Methods of Triton's file manager that are overridden, and their parameters."""


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where Triton looks otherwise."""
    from triton import knobs
    from triton.runtime import cache

    for name, parameters in EXPECTED.items():
        require(cache.FileCacheManager, name, parameters)
    before = vars(knobs.cache).get("manager_class")
    if knobs.cache.manager_class not in (None, FileCacheManager):
        session.current().bypass("triton", "the program has a cache manager of its own")
        return
    knobs.cache.manager_class = Manager

    def undo() -> None:
        if before is None:
            vars(knobs.cache).pop("manager_class", None)
        else:
            knobs.cache.manager_class = before

    patches.also(undo)


class Manager(FileCacheManager):  # type: ignore[misc]
    """Triton's file manager with kcache's store behind it.

    Any trouble of the store's leaves Triton's own behaviour. As thread-safe as Triton's
    manager: one object serves one compile.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        self._caching = session.caching() and not (override or dump)
        self._asked = kernels.asked(key) if self._caching else None

    def get_file(self, filename: str) -> str | None:
        path = super().get_file(filename)
        if not self._caching or not _is_module(filename):
            return path  # type: ignore[no-any-return]
        if path is not None:
            session.current().stats.count("triton", "hit")
            return path  # type: ignore[no-any-return]
        self._materialise(filename)
        return super().get_file(filename)  # type: ignore[no-any-return]

    def get_group(self, filename: str) -> dict[str, str] | None:
        found = super().get_group(filename)
        if self._asked is None:
            return found  # type: ignore[no-any-return]
        if found and filename in found:
            session.current().stats.count("triton", "hit")
            return found  # type: ignore[no-any-return]
        if (made := variants.arrived(self._asked.hash)) is not None:
            session.current().stats.count("triton", "miss", reason="compiled in a worker")
            self._missed(filename)
            self.put_group(filename, {name: super(Manager, self).put(data, name) for name, data in made.items()})
            return super().get_group(filename)  # type: ignore[no-any-return]
        self._materialise(filename)
        return super().get_group(filename)  # type: ignore[no-any-return]

    def known(self, filename: str) -> bool:
        """Whether the group is at hand, here or in the store. Counts nothing and reads no artifact."""
        found = super().get_group(filename)
        if found and filename in found:
            return True
        return bool(session.current().cache.candidates("triton", _key_of(self.key, filename)))

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path = super().put(data, filename, binary)
        if self._caching and _is_module(filename):
            self._store(filename, {filename: Path(path).read_bytes()})
        return path  # type: ignore[no-any-return]

    def put_group(self, filename: str, files: dict[str, str]) -> str:
        path = super().put_group(filename, files)
        if self._asked is not None:
            self._store(filename, {name: Path(p).read_bytes() for name, p in files.items()})
            recipes.keep(self._asked, _key_of(self.key, filename))
        return path  # type: ignore[no-any-return]

    def _materialise(self, filename: str) -> None:
        active = session.current()
        try:
            value = active.cache.get("triton", _key_of(self.key, filename))
            if value is None:
                self._missed(filename)
                return
            try:
                members = group.unpack(value)
                if filename.endswith(".json"):
                    json.loads(members[filename])
            except (ValueError, TypeError, KeyError) as error:
                active.spoiled("triton", _key_of(self.key, filename), "", "entry does not load", error)
                return
            paths = {name: super(Manager, self).put(data, name, binary=True) for name, data in members.items()}
            if not _is_module(filename):
                super().put_group(filename, paths)
        except Exception as error:
            active.trouble("triton", "artifacts cannot be written out", error)

    def _missed(self, filename: str) -> None:
        key = _key_of(self.key, filename)
        session.current().missed("triton", key, self._parts(filename), Path(filename).stem)

    def _parts(self, filename: str) -> list[Part]:
        if _is_module(filename) or self._asked is None:
            return _module_parts(self.key, filename)
        return self._asked.parts()

    def _store(self, filename: str, members: dict[str, bytes]) -> None:
        active = session.current()
        try:
            label, key, parts = Path(filename).stem, _key_of(self.key, filename), self._parts(filename)
            value, pieces = group.pack(members), tuple(members.values())
            active.cache.put("triton", key, value, label=label, pieces=pieces, parts=parts)
        except Exception as error:
            active.trouble("triton", "save failed", error)


def _key_of(folder: str, filename: str) -> Key:
    if not _is_module(filename):
        return group.key_of(folder, filename)
    return Key.of(_module_parts(folder, filename))


def _module_parts(folder: str, filename: str) -> list[Part]:
    # Triton's key of a C module names neither libc nor Python
    built = f"{sys.implementation.cache_tag} {platform.libc_ver()} {platform.machine()}"
    return [*group.parts_of(folder, filename), Part.of("built for", built, readable=True)]


def _is_module(filename: str) -> bool:
    return filename.endswith((".so", ".pyd", ".dylib"))
