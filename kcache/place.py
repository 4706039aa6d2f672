"""The directory a store lives in: whether it may be used, and how it comes to be.

    <root>/
        v1/                         one directory per format; mode 0700
            README  CACHEDIR.TAG  data.mdb  lock.mdb
        v1.unreadable-<time>/       set aside because LMDB could not read it

`v1` is made whole under another name and renamed into place, so no process ever sees half of
it; of two that make it at once, one wins and the other uses the winner's. Nothing that is not
ours is used, changed or removed: every doubt raises `StoreError`, which says what to do.

Whoever may write to `root` could exchange `v1` between a check and its use, so `root` is its user's or
the system's too, and not writable by others unless the sticky bit protects what is in it.

Nothing here opens `data.mdb` or `lock.mdb`: closing any descriptor of theirs would drop the
locks (POSIX) that this process holds through LMDB.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import holders
from .entry import VERSION
from .errors import REASON_OF_ERRNO, StoreError
from .filesystem import is_network, type_of

NAME = f"v{VERSION}"

README = """\
This is a compile cache written by kcache (https://pypi.org/project/kcache), format v1.
`kcache stats` says what is in it; `kcache purge` empties it; deleting the directory is safe
while no program uses it. Only its owner may write here: what it holds is code that will run.
Not for network file systems. kcache removes old entries by itself, see KCACHE_MAX_SIZE.
"""
TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# This file marks a cache directory made by kcache. Backups may leave it out.
# See https://bford.info/cachedir/
"""
_OURS = re.compile(r"v\d+(\..*)?|\.v\d+-.*")


def prepare(root: Path, make: Callable[[Path], None], *, create: bool, readonly: bool) -> Path:
    """The format's directory under `root`, checked; made, with `make(directory)` adding the data, if need be.

    Raises `StoreError` if it is missing and `create` is false, or if it may not be used.
    """
    home = root / NAME
    kind = type_of(root)
    if is_network(kind):
        raise StoreError(
            f"{root} is on a network file system ({kind}), where locks fail. Set KCACHE_DIR to a local disk",
            reason="network-file-system",
        )
    try:
        if not root.exists():
            if root.is_symlink():
                raise StoreError(f"{root} is a link to nothing. Make {os.path.realpath(root)} or remove the link")
            if not create:
                raise StoreError(f"there is no kcache store in {root}")
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_root(root)
        if os.path.lexists(home):
            _check_owner(home)
        if not home.exists() or (home.is_dir() and not any(home.iterdir())):
            if not create:
                raise StoreError(f"there is no kcache store in {root}")
            _make(root, home, make)
        _check_home(home, readonly=readonly)
    except OSError as error:
        raise StoreError(
            f"{root} cannot be used: {error.strerror or error}. Set KCACHE_DIR to another one",
            reason=REASON_OF_ERRNO.get(error.errno or 0, ""),
        ) from error
    return home


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise StoreError(f"{root} is not a directory. Set KCACHE_DIR to one")
    strangers = [name for name in os.listdir(root) if not _OURS.fullmatch(name)]
    if strangers and not (root / NAME / "CACHEDIR.TAG").exists():
        raise StoreError(f"{root} holds other files ({min(strangers)}). Set KCACHE_DIR to an empty directory")
    facts = os.stat(root)
    if facts.st_uid not in (os.getuid(), 0):
        raise StoreError(f"{root} belongs to user {facts.st_uid}. Set KCACHE_DIR to a directory of your own")
    if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:  # under the sticky bit nobody can exchange `home`
        raise _open_to_others(root, "go-w")


def _check_home(home: Path, *, readonly: bool) -> None:
    facts = os.lstat(home)
    if not stat.S_ISDIR(facts.st_mode) or not (home / "CACHEDIR.TAG").exists():
        raise StoreError(f"{home} was not made by kcache. Set KCACHE_DIR to an empty directory")
    if facts.st_mode & 0o022:
        raise _open_to_others(home, "700")
    for name in ("data.mdb", "lock.mdb", holders.NAME):
        _check_file(home / name)
    if not readonly and not os.access(home, os.W_OK | os.X_OK):
        raise StoreError(
            f"{home} cannot be written. Make it writable or set KCACHE_DIR to another directory", reason="read-only"
        )


def _check_file(path: Path) -> None:
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(facts.st_mode):
        raise StoreError(f"{path} is not a file. Remove it")
    _check_owner(path)
    if facts.st_mode & 0o022:
        raise _open_to_others(path, "600")


def _open_to_others(path: Path, mode: str) -> StoreError:
    command = f"chmod {mode} {shlex.quote(str(path))}"
    return StoreError(f"others may write to {path}, and what it holds is run. Run: {command}")


def _check_owner(path: Path) -> None:
    owner = os.lstat(path).st_uid
    if owner != os.getuid():
        raise StoreError(f"{path} belongs to user {owner}. Set KCACHE_DIR to a directory of your own")


def _make(root: Path, home: Path, make: Callable[[Path], None]) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=root))  # mkdtemp gives mode 0700
    try:
        (aside / "README").write_text(README, encoding="utf-8")
        (aside / "CACHEDIR.TAG").write_text(TAG, encoding="utf-8")
        make(aside)
        sync(aside)  # else a power loss could take the directory from under what is synced into its file
        try:
            os.rename(aside, home)
            sync(root)
        except OSError:
            if not (home / "CACHEDIR.TAG").exists():  # else: another process was faster
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Return when the file or directory at `path` is on the disk. Not for the files of a store that is open."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def kept(root: Path, *, alone: bool = False, wait: float = 5.0) -> Iterator[None]:
    """Hold off, while the block runs, that the store in `root` is set aside; `alone`: that anybody opens it, too.

    What is opened by its path (`holders`, `lock.mdb`, `data.mdb`, one after the other) is of one store then. Raises
    `StoreError`, reason `busy`, after `wait` seconds. A directory that cannot be opened is left to `prepare`.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        descriptor = -1
    if descriptor < 0:
        yield
        return
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise StoreError(f"{root} is being opened or set aside by others", reason="busy") from error
                time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def identity(home: Path) -> tuple[int, int] | None:
    """Device and inode of the file in `home`; None if there is none."""
    try:
        facts = os.stat(home / "data.mdb")
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


def set_aside(home: Path, file: tuple[int, int] | None) -> Path | None:
    """Rename a store that cannot be read, so that a new one can be made. Processes that have it open keep it.

    Returns where it is now, or None if `file` is no longer the one in it: another process was faster.
    Raises `OSError` or `StoreError`.
    """
    with kept(home.parent, alone=True):
        if identity(home) != file:
            return None
        stamp = time.strftime("%Y%m%dT%H%M%S")
        for attempt in range(100):
            target = home.with_name(f"{NAME}.unreadable-{stamp}" + (f"-{attempt}" if attempt else ""))
            if not target.exists():
                os.rename(home, target)
                return target
    raise StoreError(f"{home} cannot be read and could not be set aside. Remove it")
