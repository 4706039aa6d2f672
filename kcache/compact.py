"""Make the file of a store as small as what is live in it.

LMDB reuses the pages of what was removed, and never gives them back to the disk. Here the live
pages are copied beside the file, the copy is walked and counted, synced and renamed into its
place. Whoever ends this process at any moment leaves the whole old file or the whole new one,
and at most a folder beside it that the next compaction removes.

Nobody may have the store open meanwhile; whoever opens it waits `holders.JOIN_WAIT` and then goes without.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from . import database, datafile, place
from .errors import StoreError
from .rows import Transaction
from .units import MIB, format_size

_BESIDE = f".{place.NAME}-compact-"


def compact(root: Path) -> tuple[int, int]:
    """Compact the store in `root`. Returns the bytes that its file took on disk before and takes now.

    Raises `StoreError`: reason `in-use` if a process has the store open, `disk-full` if the copy has no room,
    `unreadable-store` if the file is damaged. The store is as it was then.
    """
    home = place.prepare(root, datafile.make, create=False, readonly=False)
    file = home / "data.mdb"
    with database.alone(home):
        for left in root.glob(f"{_BESIDE}*"):
            shutil.rmtree(left)
        before = _on_disk(file)
        _check_tree(home)
        rows, live = _survey(home)
        _check_room(root, live)
        beside = Path(tempfile.mkdtemp(prefix=_BESIDE, dir=root))
        try:
            _copy(home, beside)
            _check_tree(beside)
            if _survey(beside)[0] != rows:
                raise StoreError(f"the copy of {home} does not hold what the store holds; it was thrown away")
            os.chmod(beside / "data.mdb", 0o600)
            place.sync(beside / "data.mdb")
            os.rename(beside / "data.mdb", file)
            place.sync(home)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return before, _on_disk(file)


def _survey(home: Path) -> tuple[dict[str, int], int]:
    """The rows of each table in `home` and the bytes in use. Its tree is sound."""
    with datafile.explaining(home), datafile.open_lmdb(home, datafile.SLACK, readonly=True) as env:
        datafile.check_length(env, home, None)
        tables = datafile.open_tables(env, readonly=True)
        with env.begin() as inner:
            txn = Transaction(inner, tables)
            datafile.check_format(txn, home)
            return {name: txn.entries(name) for name in tables}, txn.live_bytes()


def _copy(home: Path, target: Path) -> None:
    """Put into the empty directory `target` what is in use in `home`."""
    with datafile.explaining(target), datafile.open_lmdb(home, datafile.SLACK, readonly=True) as env:
        env.copy(os.fsencode(target), compact=True)  # type: ignore[arg-type]


def _on_disk(file: Path) -> int:
    return os.stat(file).st_blocks * 512


def _check_room(root: Path, needed: int) -> None:
    facts = os.statvfs(root)
    free = facts.f_bavail * facts.f_frsize
    if free < needed + MIB:
        raise StoreError(
            f"compacting writes a copy of {format_size(needed)}, and {root} has {format_size(free)} free. "
            f"Make room, or run: kcache gc --max-size SIZE",
            reason="disk-full",
        )


def _check_tree(home: Path) -> None:
    found = datafile.problems(home)
    if found:
        raise StoreError(f"{home} is damaged ({found[0]}). Run: kcache verify --repair", reason="unreadable-store")
