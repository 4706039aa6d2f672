"""Why a lookup missed or was bypassed: the nearest stored entry, and what differs from it.

`nearest` reads a bounded number of part lists (`kcache.recent`), takes the one with the most
equal parts, and reads the texts of the parts that differ. It runs on a miss alone, before a
compile. `Explained` prints well; `Journal` keeps those of a process, bounded, thread-safe, and
is empty in a forked child.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .diff import Difference, differences
from .digest import Key, Part
from .errors import Damaged

if TYPE_CHECKING:
    from .store import Store

REMEMBERED = 1000
SHOWN = 3
"""Differences in one line of the log."""


@dataclass(frozen=True)
class Explained:
    """One miss or bypass. `against` is the entry compared with; `reason` says what no comparison can."""

    layer: str
    outcome: str
    label: str = ""
    key: Key | None = None
    against: Key | None = None
    differs: tuple[Difference, ...] = ()
    reason: str = ""

    @property
    def line(self) -> str:
        """All of it in one line, further differences as a count."""
        shown = "; ".join(str(d) for d in self.differs[:SHOWN])
        more = f"; and {len(self.differs) - SHOWN} more" if len(self.differs) > SHOWN else ""
        key = f" {self.key.short}" if self.key else ""
        label = f" ({self.label})" if self.label else ""
        return f"{self.layer} {self.outcome}{key}{label}: {shown + more or self.reason}"

    def __str__(self) -> str:
        near = [f"  nearest entry: {self.against.short}"] if self.against else []
        head = Explained(self.layer, self.outcome, self.label, self.key, reason=self.reason or "what differs").line
        return "\n".join([head, *near, *(f"  {d}" for d in self.differs)])


class Report(tuple[Explained, ...]):
    """Explanations, oldest first; prints each as a paragraph."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "No miss and no bypass."

    __repr__ = __str__


def nearest(store: Store, layer: str, key: Key | None, parts: Sequence[Part], label: str = "") -> Explained:
    """What differs between `parts` and the nearest entry of `layer` other than `key` itself.

    Raises `StoreError` if the store cannot be read; an entry whose part list is damaged is passed over.
    """
    mine = {part.name: part.digest for part in parts}
    best: tuple[int, Key, list[Part]] | None = None
    for other in store.like(layer, parts):
        if other == key:
            return Explained(layer, "miss", label, key, other, reason="stored, but under guards that do not hold here")
        try:
            theirs = store.part_names(layer, other)
        except Damaged:
            continue
        score = sum(mine.get(part.name) == part.digest for part in theirs)
        if theirs and (best is None or score > best[0]):
            best = score, other, theirs
    if best is None:
        return Explained(layer, "miss", label, key, reason="no entry of this layer to compare with")
    _, other, theirs = best
    try:
        full = [store.with_text(part) if mine.get(part.name) != part.digest else part for part in theirs]
    except Damaged:
        full = theirs
    return Explained(layer, "miss", label, key, other, tuple(differences(full, parts)), "")


class Journal:
    """The misses and bypasses of this process."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self._held: deque[Explained] = deque(maxlen=limit)
        self._pid = os.getpid()

    def add(self, explained: Explained) -> None:
        """Keep one more; the oldest goes first."""
        with self._lock:
            self._own().append(explained)

    def report(self) -> Report:
        """All that is held."""
        with self._lock:
            return Report(self._own())

    def _own(self) -> deque[Explained]:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._held.clear()
        return self._held


CURRENT = Journal()
"""Of this process."""
