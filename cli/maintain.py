"""`kcache purge`, `gc` and `compact`: remove entries by layer, age or kernel, or the least used ones; shrink the file.

Entries that name each other leave together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from .render import plural

if TYPE_CHECKING:
    from kcache.store import Store, Stored


@click.command()
@click.option("--layer", help="Only entries of this layer, and what is linked with them.")
@click.option("--older-than", metavar="AGE", help="Only entries not used for this long: 7d, 12h.")
@click.option("--kernel", metavar="NAME", help="Only entries that hold the kernel NAME.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store.")
def purge(
    layer: str | None, older_than: str | None, kernel: str | None, dry_run: bool, yes: bool, directory: str | None
) -> None:
    """Remove entries: all of them, or those that meet every condition given."""
    from kcache.config import Settings
    from kcache.counters import LAYERS
    from kcache.store import Store
    from kcache.units import format_size, parse_duration

    if layer is not None and layer not in [known.id for known in LAYERS]:
        raise click.BadParameter(f"expected one of {', '.join(known.id for known in LAYERS)}", param_hint="--layer")
    try:
        age_ns = None if older_than is None else int(parse_duration(older_than) * 1e9)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older-than") from error
    settings = Settings.load(dir=directory)
    store = Store.open(settings.dir, max_size=settings.max_size, create=False, readonly=dry_run)
    try:
        before_ns = None if age_ns is None else time.time_ns() - age_ns
        chosen = select(store.scan(), layer=layer, before_ns=before_ns, kernel=kernel)
        size = sum(item.record.raw_size for item in chosen if item.record is not None)
        what = f"{plural(len(chosen), 'entry', 'entries')} ({format_size(size)})"
        if dry_run:
            click.echo(f"Would remove {what}.")
            return
        if chosen and not yes:
            _ask(what, str(store.home))
        _remove(store, chosen, everything=layer is None and older_than is None and kernel is None)
        click.echo(f"Removed {what}.")
    finally:
        store.close()


def _ask(what: str, where: str) -> None:
    if not sys.stdin.isatty():
        click.echo(f"kcache: would remove {what} from {where}. Add --yes to do it, or --dry-run to look.", err=True)
        raise click.exceptions.Exit(2)
    click.confirm(f"Remove {what} from {where}?", abort=True, err=True)


def _remove(store: Store, chosen: Iterable[Stored], *, everything: bool) -> None:
    if everything:
        store.clear()
    else:
        store.delete(item.id for item in chosen)


def select(rows: Iterable[Stored], *, layer: str | None, before_ns: int | None, kernel: str | None) -> list[Stored]:
    """Rows that meet every condition that is not None, and all that is linked with them."""
    from kcache.evict import Row, groups

    listed = list(rows)
    met = {
        item.id
        for item in listed
        if (layer is None or item.layer == layer)
        and (before_ns is None or item.used_ns < before_ns)
        and (kernel is None or (item.record is not None and kernel in item.record.label.split()))
    }
    linked = groups(
        Row(item.id, item.layer, item.key, item.used_ns, 0, item.record.links if item.record else ()) for item in listed
    )
    leaving = {row.id for group in linked if any(row.id in met for row in group) for row in group}
    return [item for item in listed if item.id in leaving]


@click.command()
@click.option("--max-size", metavar="SIZE", help="Bytes in use to come down to, such as 2GiB; default: the setting's.")
@click.option("--dry-run", is_flag=True, help="Say what would be evicted; evict nothing.")
@click.option("--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store.")
def gc(max_size: str | None, dry_run: bool, directory: str | None) -> None:
    """Evict least used entries down to a size, those that took long to compile later.

    The room is reused by later entries; the file itself does not shrink.
    """
    from kcache import room
    from kcache.config import Settings
    from kcache.store import Store
    from kcache.units import format_size, parse_size

    settings = Settings.load(dir=directory)
    try:
        target = room.limit(settings.max_size) if max_size is None else parse_size(max_size)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--max-size") from error
    store = Store.open(settings.dir, max_size=settings.max_size, create=False, readonly=dry_run)
    try:
        before, count = store.live_bytes(), store.count()
        if dry_run:
            click.echo(f"Would evict {format_size(max(0, before - target))} of {format_size(before)} in use.")
            return
        store.evict(target)
        gone = count - store.count()
        freed = format_size(before - store.live_bytes())
        click.echo(f"Evicted {plural(gone, 'entry', 'entries')} ({freed}).")
    finally:
        store.close()


@click.command()
@click.option("--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store.")
def compact(directory: str | None) -> None:
    """Make the file as small as what is in use.

    No process may have the store open. The old file is replaced once the new one is whole and checked.
    """
    from kcache.compact import compact as shrink
    from kcache.config import Settings
    from kcache.units import format_size

    before, after = shrink(Settings.load(dir=directory).dir)
    click.echo(f"The file takes {format_size(after)} on disk; it took {format_size(before)}.")
