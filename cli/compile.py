"""`kcache compile`: build the Triton kernels of the store for a target, without that GPU and without the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import click

from .render import plural

if TYPE_CHECKING:
    from kcache.cache import Cache
    from kcache.recipe import Recipe, Target

WARP_SIZES = {"cuda": 32, "hip": 64}


class TargetType(click.ParamType):  # type: ignore[type-arg]
    """`cuda:90`, `hip:gfx942`, or with a warp size `hip:gfx1100:32`."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if isinstance(value, tuple):
            return value  # type: ignore[return-value]
        backend, _, rest = str(value).partition(":")
        arch, _, warp = rest.partition(":")
        if not arch or (warp or "0").isdigit() is False or not (warp or backend in WARP_SIZES):
            self.fail(f"expected BACKEND:ARCHITECTURE, such as cuda:90 or hip:gfx942, not {value!r}", param, ctx)
        return backend, int(arch) if arch.isdigit() else arch, int(warp or WARP_SIZES[backend])


@click.command("compile")
@click.option("--target", type=TargetType(), required=True, help="What to build for: cuda:90, hip:gfx942.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to use; all cores if not given.")
@click.option("--kernel", metavar="NAME", help="Only kernels called NAME.")
@click.option("--dry-run", is_flag=True, help="Say what is missing; build nothing.")
@click.option("--dir", "directory", type=click.Path(resolve_path=True), help="Directory that holds the store.")
def compile_(target: Target, jobs: int | None, kernel: str | None, dry_run: bool, directory: str | None) -> None:
    """Build the store's Triton kernels for a GPU that need not be here: those whose binaries it lacks.

    Needs the Triton that the kernels were compiled with, and no GPU. Exit status 1 if a kernel could not be built.
    """
    from kcache.cache import Cache
    from kcache.config import Settings
    from kcache.counters import Stats
    from kcache.store import Store

    settings = Settings.load(dir=directory)
    stats = Stats()
    store = Store.open(
        settings.dir,
        max_size=settings.max_size,
        create=False,
        readonly=dry_run,
        stats=stats,
        signing_key=settings.signing_key,
    )
    cache = Cache(store, settings, stats, keep_runs=False)
    failed: dict[str, str] = {}
    try:
        wanted = list(missing(cache, target, kernel, failed))
        if dry_run:
            click.echo(f"Would build {plural(len(wanted), 'kernel', 'kernels')}.")
        elif wanted:
            build_all(cache, wanted, jobs, failed)
        if not dry_run:
            click.echo(f"Built {plural(len(wanted) - sum(r.hash in failed for r in wanted), 'kernel', 'kernels')}.")
    finally:
        cache.close()
    for reason in failed.values():
        click.echo(f"kcache: {reason}", err=True)
    if failed:
        click.echo(f"kcache: {plural(len(failed), 'kernel', 'kernels')} could not be built.", err=True)
        raise click.exceptions.Exit(1)


def missing(cache: Cache, target: Target, kernel: str | None, failed: dict[str, str]) -> Iterator[Recipe]:
    """Recipes for `target` whose artifacts are not in the store, none twice; what has none goes into `failed`."""
    from kcache import group
    from kcache.build import retarget
    from kcache.errors import KcacheError
    from kcache.recipe import Recipe

    seen = set()
    for stored in cache.store.scan("recipe"):
        if stored.record is None or (kernel is not None and kernel != stored.record.label):
            continue
        try:
            recipe = Recipe.loads(cache.store.read(stored.record))
            if recipe.target != target:
                recipe = retarget(recipe, target)
        except (KcacheError, ValueError) as error:
            failed[stored.key.hex] = f"{stored.record.label}: {error}"
            continue
        key = group.key_of(group.folder(recipe.hash), recipe.group)
        if recipe.hash not in seen and not cache.candidates("triton", key):
            seen.add(recipe.hash)
            yield recipe


def build_all(cache: Cache, wanted: list[Recipe], jobs: int | None, failed: dict[str, str]) -> None:
    """Build and store every recipe; what fails goes into `failed`.

    A compiler that aborts takes its worker along and the pool with it; what was unfinished
    is then built again, each recipe in a worker of its own, so that only one of them fails.
    """
    from kcache.build import cores

    with click.progressbar(length=len(wanted), label="Building", file=sys.stderr) as bar:
        step: Callable[[int], Any] = bar.update
        lost = _round(cache, wanted, jobs or cores(), failed, step)
        for recipe in lost:
            if _round(cache, [recipe], 1, failed, step):
                failed[recipe.hash] = f"{recipe.name}: the compiler ended its process"
                step(1)


def _round(
    cache: Cache, wanted: list[Recipe], jobs: int, failed: dict[str, str], step: Callable[[int], Any]
) -> list[Recipe]:
    """Build `wanted` in one pool; returns those that were lost with it."""
    from kcache.build import Pool

    pool = Pool(min(jobs, len(wanted)))
    lost = []
    try:
        running = {pool.submit(recipe): recipe for recipe in wanted}
        for future in as_completed(running):
            recipe = running[future]
            try:
                _keep(cache, recipe, future.result())
            except BrokenProcessPool:
                lost.append(recipe)
                continue
            except Exception as error:
                failed[recipe.hash] = f"{recipe.name}: {_said(error)}"
            step(1)
    finally:
        pool.close()
    return lost


def _keep(cache: Cache, recipe: Recipe, files: dict[str, bytes]) -> None:
    from kcache import group

    key = group.key_of(group.folder(recipe.hash), recipe.group)
    cache.put("triton", key, group.pack(files), label=recipe.name, pieces=tuple(files.values()))


def _said(error: Exception) -> str:
    from kcache.build import BuildError

    text = str(error).strip()
    return text if isinstance(error, BuildError) else f"{type(error).__name__}: {text}"
