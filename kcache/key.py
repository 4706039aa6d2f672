"""A compile's complete description: the parts, the key they fold into, and whether they still hold.

A training entry mixes two moments: its key is taken before the forward is compiled, and
its backward is lowered at the first `.backward()`. So a description can be taken again
(`changed`), and an entry whose parts differ by then is not saved.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kcache.digest import Key, Part

REMEMBERED = 4096
"""Descriptions kept per process; one is needed from its lookup to its save."""


@dataclass(frozen=True)
class Description:
    """What one compile depends on. `again` takes the parts anew that can change while compiling."""

    parts: tuple[Part, ...]
    again: Callable[[], Iterable[Part]]
    label: str = ""
    """Names of the user's kernels, separated by spaces, for people and for `purge --kernel`."""

    @property
    def key(self) -> Key:
        """The fold of all parts."""
        return Key.of(self.parts)

    def changed(self) -> list[str]:
        """Names of parts that differ from when the key was taken, in order."""
        before = {part.name: part.digest for part in self.parts}
        return [part.name for part in self.again() if before.get(part.name) != part.digest]

    def differing(self, other: Description) -> list[str]:
        """Names of parts that both have and that differ."""
        mine = {part.name: part.digest for part in self.parts}
        return [part.name for part in other.parts if part.name in mine and mine[part.name] != part.digest]


class Descriptions:
    """The descriptions of this process by key; bounded, oldest out first. Thread-safe."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._held: OrderedDict[Key, Description] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, description: Description) -> Key:
        """Keep `description`; returns its key."""
        key = description.key
        with self._lock:
            self._held[key] = description
            self._held.move_to_end(key)
            while len(self._held) > self._limit:
                self._held.popitem(last=False)
        return key

    def get(self, key: Key) -> Description | None:
        """The description that `key` was made of in this process, if it is still held."""
        with self._lock:
            return self._held.get(key)
