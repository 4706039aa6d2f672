"""`kcache verify`: read everything, say what is bad, and remove it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from .render import plural, row

if TYPE_CHECKING:
    from pathlib import Path

    from kcache.config import Settings
    from kcache.verify import Report


@click.command()
@click.option("--repair", is_flag=True, help="Remove bad entries and what is linked with them; set a bad file aside.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with each bad entry by itself.")
@click.option("--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store.")
def verify(repair: bool, as_json: bool, directory: str | None) -> None:
    """Read and verify every entry, and the tree of the file if no process has it open.

    Exit status 1 if anything is bad, repaired or not.
    """
    from kcache.config import Settings
    from kcache.verify import Report, tree

    settings = Settings.load(dir=directory)
    problems, aside = tree(settings.dir, repair=repair)
    report, removed = (Report(), 0) if problems else _entries(settings, repair=repair)
    facts = _facts(settings, problems, aside, report, removed)
    click.echo(json.dumps(facts, indent=2, sort_keys=True) if as_json else "\n".join(_lines(facts, repair=repair)))
    if problems or not report.sound:
        raise click.exceptions.Exit(1)


def _entries(settings: Settings, *, repair: bool) -> tuple[Report, int]:
    from kcache import verify
    from kcache.store import Store

    store = Store.open(
        settings.dir,
        max_size=settings.max_size,
        create=False,
        readonly=not repair,
        signing_key=settings.signing_key,
    )
    try:
        report = verify.verify(store)
        return report, verify.repair(store, report) if repair and not report.sound else 0
    finally:
        store.close()


def _facts(
    settings: Settings, problems: list[str] | None, aside: Path | None, report: Report, removed: int
) -> dict[str, Any]:
    return {
        "dir": str(settings.dir),
        "tree": {"checked": problems is not None, "problems": problems or []},
        "set_aside": str(aside) if aside else None,
        "entries": report.entries,
        "bytes": report.bytes,
        "bad": [{"layer": bad.layer, "key": bad.key.hex, "reason": bad.reason} for bad in report.bad],
        "strays": dict(report.strays),
        "removed": removed,
    }


def _lines(facts: dict[str, Any], *, repair: bool) -> list[str]:
    from kcache.units import format_size

    problems = facts["tree"]["problems"]
    if problems:
        out = [row("Tree", "damaged"), *(f"  {problem}" for problem in problems[:5])]
        out += [f"  and {len(problems) - 5} more"] if len(problems) > 5 else []
        return [*out, f"Set aside: {facts['set_aside']}" if facts["set_aside"] else "Run: kcache verify --repair"]
    out = [row("Tree", "sound") if facts["tree"]["checked"] else row("Tree", "not checked", "the store is in use")]
    out.append(row("Entries", facts["entries"], format_size(facts["bytes"])))
    out.append(row("Bad", len(facts["bad"])))
    found = Counter(f"{bad['layer']}, {bad['reason']}" for bad in facts["bad"])
    found.update({f"store, {what}": count for what, count in facts["strays"].items()})
    out += [f"  {count:>6}  {what}" for what, count in sorted(found.items())]
    if found:
        removed = plural(facts["removed"], "entry", "entries")
        out.append(f"Removed {removed}." if repair else "Run: kcache verify --repair")
    return out
