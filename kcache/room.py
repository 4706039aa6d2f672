"""How much a store may hold, and making room in it.

Live pages are kept below a part of `max_size`, since freed room is in pieces: churn was measured
to make a file 1.75 times its live bytes. Eviction reads the index, plans outside any
transaction, and removes whole groups in small ones, so nobody waits for it. It runs where
writes run, in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .evict import Row, plan

if TYPE_CHECKING:
    from .store import Store

FILL = 0.6
"""Live bytes per byte of `max_size`."""
EVICT_TO = 0.8
"""Eviction goes on to this part of the limit, so that it is not begun again with every write."""
MAX_SHARE = 0.25
"""A value larger than this part of the limit is not stored: it would push out everything else."""
_BATCH_GROUPS = 32
_PLANS = 3


def limit(max_size: int) -> int:
    """Most live bytes of a store of `max_size` bytes."""
    return int(FILL * max_size)


def largest(max_size: int) -> int:
    """Most bytes of one value."""
    return int(MAX_SHARE * limit(max_size))


def batch(max_size: int) -> int:
    """Most bytes that are stored in one transaction."""
    return int(EVICT_TO * limit(max_size) / 2)


def make(store: Store, incoming: int) -> bool:
    """Whether `incoming` bytes fit below the limit, after evicting if need be."""
    most = limit(store.max_size)
    if store.live_bytes() + incoming > most:
        store.evict(max(0, int(EVICT_TO * most) - incoming))
    return store.live_bytes() + incoming <= most


def evict(store: Store, target: int) -> int:
    """Remove groups in the order of `evict.plan` until at most `target` bytes are live. Returns how many entries.

    A plan knows nothing of what other processes store and evict while it is carried out, and would go on to entries
    that are worth more than the new ones. So it removes no more than was too much when it was made, and ends where an
    entry is gone already; then another is made.
    """
    total = 0
    for _ in range(_PLANS):
        excess = store.live_bytes() - target
        if excess <= 0:
            break
        total += _remove(store, planned(store), target, excess)
    return total


def _remove(store: Store, order: list[list[Row]], target: int, excess: int) -> int:
    """Remove groups from the front of `order`, as far as the plan is good. Returns how many entries."""
    total = 0
    for start in range(0, len(order), _BATCH_GROUPS):
        with store.transaction(write=True) as txn:
            for group in order[start : start + _BATCH_GROUPS]:
                before = txn.live_bytes()
                if before <= target or excess <= 0:
                    return total
                removed = sum(txn.remove(row.id) for row in group)
                if not removed:
                    return total
                total += removed
                excess -= before - txn.live_bytes()
    return total


def planned(store: Store) -> list[list[Row]]:
    """All groups, the one that should leave first in front."""
    rows = [
        Row(s.id, s.layer, s.key, s.used_ns, *((s.record.cost_ns, s.record.links) if s.record else ()))
        for s in store.scan()
    ]
    return [list(group) for group in plan(rows)]
