"""What a process hit, missed, bypassed and saved, as tables that everything else walks.

`LAYERS` names the layers and `COUNTERS` the outcomes; printing, JSON and the lifetime sums
in the store are walks over the two. Counts are integers, times are nanoseconds inside and
seconds where people see them.

`Stats` may be used from any thread. After `fork()` a child starts from zero, so that no
count is written down twice.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .units import format_seconds


class Layer(NamedTuple):
    """One kind of entry: its name and one sentence on what it holds."""

    id: str
    text: str


LAYERS = (
    Layer("direct", "which compiled program answers a graph as Dynamo hands it over"),
    Layer("aot", "AOTAutograd results, forward and backward"),
    Layer("fx", "compiled FX graphs"),
    Layer("triton", "Triton kernels: cubin, metadata and intermediate forms"),
    Layer("recipe", "how Triton kernels were compiled, for compiling them again"),
    Layer("tune", "autotune results"),
    Layer("cpp", "shared objects of the C++ backend"),
    Layer("code", "generated Python modules"),
    Layer("host", "facts about this machine that every process works out again"),
)


class Counter(NamedTuple):
    """One outcome that is counted: its id, the text people read, and its group."""

    id: str
    text: str
    group: str


COUNTERS = (
    Counter("hit", "Hits", "lookup"),
    Counter("miss", "Misses", "lookup"),
    Counter("bypass", "Bypassed", "lookup"),
    Counter("stored", "Stored", "write"),
    Counter("skipped", "Not stored", "write"),
    Counter("damaged", "Damaged", "trouble"),
    Counter("refused", "Refused", "trouble"),
    Counter("error", "Errors", "trouble"),
)
_OUTCOMES = frozenset(counter.id for counter in COUNTERS)


@dataclass(frozen=True)
class Snapshot:
    """The counts at one moment. Prints as a short report; `to_dict()` is the JSON form."""

    layers: dict[str, dict[str, int]] = field(default_factory=dict)
    reasons: dict[tuple[str, str, str], int] = field(default_factory=dict)
    saved_ns: dict[str, int] = field(default_factory=dict)

    def total(self, outcome: str) -> int:
        """Sum of `outcome` over all layers."""
        return sum(counts.get(outcome, 0) for counts in self.layers.values())

    @property
    def hits(self) -> int:
        return self.total("hit")

    @property
    def misses(self) -> int:
        return self.total("miss")

    @property
    def bypasses(self) -> int:
        return self.total("bypass")

    @property
    def saved_seconds(self) -> float:
        """Compile time that hits made unnecessary."""
        return sum(self.saved_ns.values()) / 1e9

    def since(self, earlier: Snapshot) -> Snapshot:
        """What was counted after `earlier` was taken."""
        layers = {layer: _minus(counts, earlier.layers.get(layer, {})) for layer, counts in self.layers.items()}
        return Snapshot(
            {layer: counts for layer, counts in layers.items() if counts},
            _minus(self.reasons, earlier.reasons),
            _minus(self.saved_ns, earlier.saved_ns),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        return {
            "layers": {layer: dict(counts) for layer, counts in self.layers.items()},
            "reasons": [
                {"layer": layer, "outcome": outcome, "reason": reason, "count": count}
                for (layer, outcome, reason), count in sorted(self.reasons.items())
            ],
            "saved_ns": dict(self.saved_ns),
            "saved_seconds": self.saved_seconds,
        }

    def __str__(self) -> str:
        lines = summary_lines(self.layers)
        if self.saved_ns:
            lines.append(f"{'Time saved:':<24}{format_seconds(self.saved_seconds):>12}")
        if self.reasons:
            lines.append("Reasons:")
        for (layer, outcome, reason), count in sorted(self.reasons.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {f'{layer}, {outcome}:':<22}{count:>12}   {reason}")
        return "\n".join(lines)


def summary_lines(layers: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Lines like ccache's `-s`: totals with ratios, then hits of each layer, then what went wrong."""
    totals: Tally[str] = Tally()
    for counts in layers.values():
        totals.update(counts)
    lookups = sum(totals[counter.id] for counter in COUNTERS if counter.group == "lookup")
    lines = [_ratio("Cacheable lookups:", totals["hit"] + totals["miss"], lookups)]
    lines.append(_ratio("  Hits:", totals["hit"], totals["hit"] + totals["miss"]))
    for layer, _ in LAYERS:
        counts = layers.get(layer, {})
        asked = counts.get("hit", 0) + counts.get("miss", 0)
        if asked:
            lines.append(_ratio(f"    {layer}:", counts.get("hit", 0), asked))
    lines.append(_ratio("  Misses:", totals["miss"], totals["hit"] + totals["miss"]))
    for counter in COUNTERS:
        if counter.id not in ("hit", "miss") and totals[counter.id]:
            lines.append(
                _ratio(f"{counter.text}:", totals[counter.id], lookups)
                if counter.group == "lookup"
                else f"{counter.text + ':':<24}{totals[counter.id]:>12}"
            )
    return lines


def _ratio(label: str, part: int, whole: int) -> str:
    line = f"{label:<24}{part:>12} / {whole:<6}"
    return f"{line} ({100 * part / whole:.1f} %)" if whole else line.rstrip()


def _minus(now: Mapping[Any, int], before: Mapping[Any, int]) -> dict[Any, int]:
    return {name: count - before.get(name, 0) for name, count in now.items() if count > before.get(name, 0)}


_every: weakref.WeakSet[Stats] = weakref.WeakSet()


def _in_child() -> None:
    for stats in list(_every):
        stats.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Stats:
    """Counts of one process. Thread-safe; a forked child begins at zero."""

    def __init__(self) -> None:
        self._reset()
        _every.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._counts: Tally[tuple[str, str]] = Tally()
        self._reasons: Tally[tuple[str, str, str]] = Tally()
        self._saved: Tally[str] = Tally()
        self._taken = Snapshot()

    def count(self, layer: str, outcome: str, n: int = 1, reason: str = "") -> None:
        """Count `n` times `outcome` (an id of `COUNTERS`) in `layer`, with its reason if there is one."""
        if outcome not in _OUTCOMES:
            raise ValueError(f"{outcome!r} is not an outcome")
        with self._lock:
            self._counts[layer, outcome] += n
            if reason:
                self._reasons[layer, outcome, reason] += n

    def hit(self, layer: str, saved_ns: int) -> None:
        """Count a hit and what it saved."""
        with self._lock:
            self._counts[layer, "hit"] += 1
            self._saved[layer] += saved_ns

    def saved(self, layer: str, ns: int) -> None:
        """A hit in `layer` made `ns` nanoseconds of compiling unnecessary."""
        with self._lock:
            self._saved[layer] += ns

    def snapshot(self) -> Snapshot:
        """The counts as they stand, detached from this object."""
        with self._lock:
            layers: dict[str, dict[str, int]] = {}
            for (layer, outcome), n in self._counts.items():
                layers.setdefault(layer, {})[outcome] = n
            return Snapshot(layers, dict(self._reasons), dict(self._saved))

    def take(self) -> Snapshot:
        """What was counted since the last `take()`: each count is handed out once."""
        now = self.snapshot()
        with self._lock:
            earlier, self._taken = self._taken, now
        return now.since(earlier)

    def reset(self) -> None:
        """Forget everything counted so far."""
        self._reset()


CURRENT = Stats()
"""The counts of this process."""
