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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .diff import Difference, differences
from .digest import Digest, Key, Part
from .errors import Damaged
from .listing import keyed
from .recent import SHARED

if TYPE_CHECKING:
    from .counters import Stats
    from .store import Store

REMEMBERED = 1000
SHOWN = 3
"""Differences in one line of the log."""
CODE = ("kernel", "function", "class", "operator", "pass", "table")
"""First words of the parts that stand for code which a user can edit."""
NOTHING = "no entry of this layer to compare with"
SAME = "no part that is kept differs from those of the nearest entry"
GUARDED = "stored, but under guards that do not hold here"
UNKNOWN = "its key was made in another process, so its parts are not known"


@dataclass(frozen=True)
class Explained:
    """One miss, bypass or result that was not stored.

    `against` is the entry compared with; `reason` says what no comparison can.
    """

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


def nearest(
    store: Store, stats: Stats, layer: str, key: Key | None, parts: Sequence[Part], label: str = ""
) -> Explained:
    """What differs between `parts` and the nearest entry of `layer` other than `key` itself.

    Raises `StoreError` if the store cannot be read. What is damaged is passed over and counted in `stats`.
    """
    if key is not None and (guards := [record.guards for _, record in store.variants(layer, key)]):
        reason = f"{GUARDED}: {'; '.join(each or 'none' for each in guards[:SHOWN])}"
        return Explained(layer, "miss", label, key, key, reason=reason)
    if not parts:
        return Explained(layer, "miss", label, key, reason=UNKNOWN)
    against, differs = compared(store, stats, layer, key, parts)
    reason = "" if differs else SAME if against else NOTHING
    return Explained(layer, "miss", label, key, against, differs, reason)


def compared(
    store: Store, stats: Stats, layer: str, key: Key | None, parts: Sequence[Part]
) -> tuple[Key | None, tuple[Difference, ...]]:
    """The nearest entry of `layer` other than `key`, and what differs between its parts and `parts`.

    Of entries with as many equal parts, one that differs in a kernel comes first: the same
    launch of another kernel says more than another launch of the same kernel.
    """
    parts = keyed(parts)
    mine = {part.name: part.digest for part in parts}
    best: tuple[tuple[int, bool], Key, list[Part]] | None = None
    for other in store.like(layer, parts):
        try:
            theirs = [] if other == key else keyed(store.part_names(layer, other))
        except Damaged as damage:
            stats.count(layer, "damaged", reason=f"parts: {damage.reason}")
            continue
        unequal = [part.name for part in theirs if mine.get(part.name) != part.digest]
        score = len(theirs) - len(unequal), any(name.startswith("kernel ") for name in unequal)
        if theirs and (best is None or score > best[0]):
            best = score, other, theirs
    if best is None:
        return None, ()
    _, other, theirs = best
    found = differences([_with_text(store, stats, layer, part, mine) for part in theirs], parts)
    return other, tuple(sorted(found, key=_rank))


def _rank(difference: Difference) -> int:
    """Code first, then what is made of it, then settings and inputs; last what one side lacks altogether."""
    word = difference.chain[0].split(" ", 1)[0]
    order = (CODE, SHARED)
    return 3 if difference.only else next((n for n, words in enumerate(order) if word in words), 2)


def _with_text(store: Store, stats: Stats, layer: str, part: Part, mine: Mapping[str, Digest]) -> Part:
    if mine.get(part.name) == part.digest:
        return part
    try:
        return store.with_text(part)
    except Damaged as damage:
        stats.count(layer, "damaged", reason=f"parts: {damage.reason}")
        return part


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

    def forget(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._own().clear()

    def _own(self) -> deque[Explained]:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._held.clear()
        return self._held


CURRENT = Journal()
"""Of this process."""
