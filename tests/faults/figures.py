"""What a show counted: faults, of which there must be none, and everything else that it saw."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """`faults` has to end empty; `counts` and `notes` say what was tried and what came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, other: Figures) -> None:
        self.faults.update(other.faults)
        self.counts.update(other.counts)
        self.notes.update(other.notes)

    def largest(self, name: str, value: float) -> None:
        """Keep the largest `value` seen under `name`."""
        self.notes[name] = round(max(value, self.notes.get(name, 0.0)), 3)

    @property
    def whole(self) -> bool:
        """Whether there was no fault."""
        return not +self.faults

    def to_dict(self) -> dict[str, Any]:
        return {"faults": dict(+self.faults), "counts": dict(sorted(self.counts.items())), **self.notes}
