"""`kcache stats`: what is in the store, how often it answered, and what that saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .render import moment, row, share

if TYPE_CHECKING:
    from kcache.config import Settings
    from kcache.store import Store

LAST_RUNS = 5


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: sizes in bytes, times in nanoseconds.")
@click.option("--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store.")
def stats(as_json: bool, directory: str | None) -> None:
    """What is in the store, what was hit, and what it saved.

    Counts are sums over all processes that have ended, since the store was made.
    """
    from kcache.config import Settings
    from kcache.store import Store

    settings = Settings.load(dir=directory)
    store = Store.open(settings.dir, max_size=settings.max_size, readonly=True)
    try:
        facts = collect(store, settings)
    finally:
        store.close()
    click.echo(json.dumps(facts, indent=2, sort_keys=True) if as_json else "\n".join(lines(facts)))


def collect(store: Store, settings: Settings) -> dict[str, Any]:
    """Everything that is printed, as plain data."""
    entries: dict[str, dict[str, int]] = {}
    for item in store.scan():
        layer = entries.setdefault(item.layer, {"entries": 0, "bytes": 0, "damaged": 0})
        layer["entries"] += 1
        if item.record is None:
            layer["damaged"] += 1
        else:
            layer["bytes"] += item.record.raw_size
    return {
        "dir": str(store.home),
        "dir_origin": settings.origins.get("dir", ""),
        "max_size": settings.max_size,
        "live_bytes": store.live_bytes(),
        "size_on_disk": store.size_on_disk(),
        "layers": entries,
        "counters": store.counters(),
        "reasons": [
            {"layer": layer, "outcome": outcome, "reason": reason, "count": count}
            for (layer, outcome, reason), count in sorted(store.reasons().items())
        ],
        "runs": store.runs(LAST_RUNS),
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """The report for people."""
    from kcache.counters import LAYERS, summary_lines
    from kcache.units import format_seconds, format_size

    counters, layers = facts["counters"], facts["layers"]
    out = summary_lines(counters)
    saved = sum(counts.get("saved_ns", 0) for counts in counters.values())
    out.append(row("Time saved", format_seconds(saved / 1e9) if saved else "0 s"))
    out += [f"Store:                  {facts['dir']} ({facts['dir_origin']})"]
    size, limit = facts["size_on_disk"], facts["max_size"]
    out.append(row("Size on disk", format_size(size), f"of {format_size(limit)} {share(size, limit)}", indent=1))
    out.append(row("In use", format_size(facts["live_bytes"]), indent=1))
    out.append(row("Entries", sum(layer["entries"] for layer in layers.values()), indent=1))
    for name in [layer.id for layer in LAYERS if layer.id in layers] + sorted(set(layers) - {x.id for x in LAYERS}):
        layer = layers[name]
        note = format_size(layer["bytes"]) + (f", {layer['damaged']} damaged" if layer["damaged"] else "")
        out.append(row(name, layer["entries"], note, indent=2))
    if facts["reasons"]:
        out.append("Reasons:")
    for item in sorted(facts["reasons"], key=lambda item: -item["count"]):
        out.append(f"  {item['layer'] + ', ' + item['outcome'] + ':':<22}{item['count']:>12}   {item['reason']}")
    if facts["runs"]:
        out.append("Last runs:")
    for run in facts["runs"]:
        out.append(f"  {run_line(run)}")
    return out


def run_line(run: dict[str, Any]) -> str:
    """One run: when it ended, what it was, what it hit and saved."""
    from kcache.units import format_seconds

    def total(outcome: str) -> int:
        return sum(counts.get(outcome, 0) for counts in run.get("layers", {}).values())

    program = str(run.get("program") or "?")[:24]
    counts = f"{total('hit'):>6} hits {total('miss'):>6} misses {total('bypass'):>5} bypassed"
    saved = format_seconds(run.get("saved_seconds", 0.0))
    return f"{moment(run.get('ended_ns', 0))}  {program:<24} {counts}   saved {saved}"
