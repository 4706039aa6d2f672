"""Fingerprints: everything that a kernel or a Python function depends on, by content.

`fingerprint` walks from an object through every name in its code to what that name means
now: helpers, constants with their types, classes, launcher options, autotune configurations.
The result is a digest, the parts it is made of, and the names that could not be followed.

* Equal digests mean that all of that is equal. Comments, docstrings, layout, file names,
  line numbers, names of locals and helpers, hash seeds and import order do not count.
* A digest whose fingerprint has a non-empty `opaque` is defined but not complete: the
  caller must not use it as a key.
* A fingerprint asked for again is checked before it is returned: everything that the walk
  has read is read once more (`kcache.watch`).
"""

from __future__ import annotations

import threading
import types
from dataclasses import dataclass, field
from typing import Any

from kcache import listing
from kcache.digest import Digest, Part
from kcache.errors import Opaque
from kcache.link import link
from kcache.watch import Watch

REMEMBERED = 4096
"""Fingerprints kept in the process; the oldest is dropped first."""


@dataclass(frozen=True)
class Fingerprint:
    """What an object depends on. Compare two of them part by part to explain a difference."""

    digest: Digest
    name: str
    parts: tuple[Part, ...]
    """One for each thing followed, in a fixed order; names are unique and for people."""
    opaque: tuple[Opaque, ...] = ()
    operators: tuple[str, ...] = ()
    """Operators outside torch's own namespaces that the code reaches, as `namespace::name`."""
    locations: tuple[str, ...] = ()
    """`file:line` of each kernel with an assertion: in the binary when it is compiled under `debug`."""

    subject: Any = field(default=None, repr=False, compare=False)
    """The object itself."""

    @property
    def source(self) -> str:
        """A kernel and all that it depends on as one Triton module, which can be imported and compiled anywhere.

        Raises `Opaque` where something cannot be printed (`kcache.link`), and if the kernel
        is no longer what this fingerprint is of.
        """
        linked = link(self.subject)
        if fingerprint(self.subject).digest != self.digest:
            raise Opaque(self.name, self.name, "it has changed since")
        return linked.module

    @property
    def listing(self) -> bytes:
        """All parts in the form that is kept beside a key (`kcache.listing`), so that two keys can be compared."""
        return listing.dump(self.parts)

    @property
    def text(self) -> str:
        """All parts as one readable text."""
        return "\n\n".join(f"# {p.name}\n{p.text.decode(errors='replace')}" for p in self.parts)


_memo: dict[int, tuple[Any, Watch, Fingerprint]] = {}
_lock = threading.Lock()


def fingerprint(obj: Any) -> Fingerprint:
    """Fingerprint of a Triton kernel with its launchers, or of any Python callable, class or instance.

    Never raises for what it cannot follow: that is listed in `opaque`.
    """
    found = _memo.get(id(obj))
    if found is not None and found[0] is obj and found[1].holds():
        return found[2]
    from kcache.walk import Walk

    if isinstance(obj, types.MethodType):  # made anew at each access, so its identity means nothing
        return Walk().run(obj)
    walk = Walk()
    result = walk.run(obj)
    with _lock:
        while len(_memo) >= REMEMBERED:
            del _memo[next(iter(_memo))]
        _memo[id(obj)] = (obj, walk.watch, result)
    return result
