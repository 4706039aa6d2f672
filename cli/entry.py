"""`kcache explain` and `kcache show`: one entry, by its key or the first digits of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kcache.store import Store

KEY = click.argument("key")
DIRECTORY = click.option(
    "--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store."
)


@contextmanager
def opened(directory: str | None) -> Iterator[Store]:
    """The store, to read only."""
    from kcache.config import Settings
    from kcache.store import Store

    settings = Settings.load(dir=directory)
    store = Store.open(settings.dir, max_size=settings.max_size, readonly=True)
    try:
        yield store
    finally:
        store.close()


@click.command()
@KEY
@DIRECTORY
def explain(key: str, directory: str | None) -> None:
    """What is stored under a key, and what differs from the nearest other entry.

    KEY is a key or its first digits, as `kcache.explain()` and the log print them, or as torch spells it.
    """
    from kcache import about
    from kcache.counters import Stats

    with opened(directory) as store:
        click.echo(str(about.entry(store, Stats(), key)))


@click.command()
@KEY
@DIRECTORY
def show(key: str, directory: str | None) -> None:
    """The graph and the kernels that are stored under a key.

    Kernels stand in the graph by name, and their linked text follows. Of a Triton kernel that was
    launched by hand this is its specialization and its text, of a C++ object its source.
    """
    from kcache import about, readable
    from kcache.counters import Stats

    with opened(directory) as store:
        found = about.entry(store, Stats(), key)
        click.echo(f"{found.layer} {found.key.hex}\n\n{readable.page(store, found.layer, found.key)}")
