"""Which entries go first when room is needed: a pure function of a list of rows.

Entries that name each other leave together, since one without the other is only dead weight.
A group is as young as its most recently used member; every second that a member took to
compile makes it look an hour younger, up to a week.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .digest import Key

COST_WEIGHT = 3600
COST_CAP_NS = 7 * 86400 * 10**9


@dataclass(frozen=True)
class Row:
    """One variant as the index names it; `links` are the entries that it names."""

    id: bytes
    layer: str
    key: Key
    used_ns: int
    cost_ns: int = 0
    links: tuple[tuple[str, Key], ...] = ()

    @property
    def age_ns(self) -> int:
        """When it counts as last used, in nanoseconds since the epoch."""
        return self.used_ns + min(self.cost_ns * COST_WEIGHT, COST_CAP_NS)


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that must leave together: variants of one key, and everything they are linked with."""
    parent: dict[tuple[str, Key], tuple[str, Key]] = {}

    def root(name: tuple[str, Key]) -> tuple[str, Key]:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    listed = list(rows)
    for row in listed:
        for link in row.links:
            parent[root(link)] = root((row.layer, row.key))
    found: dict[tuple[str, Key], list[Row]] = {}
    for row in listed:
        found.setdefault(root((row.layer, row.key)), []).append(row)
    return list(found.values())


def plan(rows: Iterable[Row]) -> list[Sequence[Row]]:
    """All groups in the order in which they should leave."""
    return sorted(groups(rows), key=lambda group: (max(row.age_ns for row in group), min(row.id for row in group)))
