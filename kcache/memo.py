"""Facts about files that every process works out again, kept under the stamps of those files.

A stamp is path, size, mtime, ctime and inode: a hint that a file is unchanged, found without
reading it. Times are nanoseconds. A file that is missing has a stamp too, so its coming into
being is a change. Callers for whom fixed timestamps are a danger (image layers) add the digest
of a content, such as a distribution's RECORD, to the name.

Stamps are taken with `stat` alone; errors other than "missing" are raised as `OSError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .digest import Digest, Key, Part

if TYPE_CHECKING:
    from .cache import Cache


class Stamp(NamedTuple):
    """What `stat` says about a file. A missing one has size -1."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """The stamp of `path`, links followed."""
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return cls(path, -1, 0, 0, 0)
        return cls(path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


def digest_stamps(stamps: Iterable[Stamp]) -> Digest:
    """Digest of stamps, in order. Lengths frame the paths, so no two lists are the same bytes."""
    rows = []
    for stamp in stamps:
        path = os.fsencode(stamp.path)
        rows.append(b"%d:%s %d %d %d %d\n" % (len(path), path, *stamp[1:]))
    return Digest.of(b"".join(rows))


def stamp_files(paths: Iterable[str | os.PathLike[str]]) -> Digest:
    """Digest of the stamps of `paths`; their order does not matter."""
    return digest_stamps(Stamp.of(path) for path in sorted({os.fspath(path) for path in paths}))


def stamp_tree(root: str | os.PathLike[str], suffixes: tuple[str, ...] = ()) -> Digest:
    """Digest of the stamps of every file below `root` (of those that end in one of `suffixes`).

    Links to directories are not followed. Directories called `__pycache__` are left out.
    """
    stamps: list[Stamp] = []
    waiting = [os.fspath(root)]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    if item.name != "__pycache__":
                        waiting.append(item.path)
                elif not suffixes or item.name.endswith(suffixes):
                    stamps.append(Stamp.of(item.path))
    stamps.sort()
    return digest_stamps(stamps)


class Memo:
    """Facts kept in the `host` layer, by name and stamps."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    @staticmethod
    def _key(name: str, stamps: Digest) -> Key:
        return Key.of([Part.of("memo", name), Part("stamps", stamps)])

    def get(self, name: str, stamps: Digest) -> bytes | None:
        """The fact `name` worked out from files with these stamps, or None."""
        return self._cache.get("host", self._key(name, stamps))

    def put(self, name: str, stamps: Digest, value: bytes, *, cost_ns: int = 0) -> None:
        """Keep the fact `name`; `cost_ns` is what it took to work out."""
        self._cache.put("host", self._key(name, stamps), value, label=name, cost_ns=cost_ns)
