"""Where a store may lie: network file systems are told by type, paths may look like anything, strangers are refused."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kcache import filesystem, place
from kcache.digest import Key, Part
from kcache.draft import Draft
from kcache.errors import StoreError
from kcache.filesystem import is_network, type_of
from kcache.store import Store

KEY = Key.of([Part.of("name", "entry")])
TABLE = r"""21 1 8:1 / / rw - ext4 /dev/vda rw
22 21 0:40 / /home rw shared:1 - nfs4 server:/home rw
23 22 8:2 / /home/local rw - xfs /dev/vdb rw
24 21 0:41 / /mnt/c rw - 9p drvfs rw
25 21 0:42 / /with\040blank rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/x", "ext4", False),
        ("/home/me", "nfs4", True),
        ("/home/local/me", "xfs", False),
        ("/homes", "ext4", False),
        ("/mnt/c/Users", "9p", True),
        ("/with blank/x", "fuse.sshfs", True),
    ],
)
def test_type_of_the_deepest_mount(tmp_path, path, kind, network):
    (tmp_path / "mounts").write_text(TABLE)
    assert type_of(path, tmp_path / "mounts") == kind
    assert is_network(kind) is network


def test_own_disk_is_no_network(tmp_path):
    assert type_of(tmp_path)
    assert not is_network(type_of(tmp_path))


def test_store_on_a_network_is_refused_and_nothing_made(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "type_of", lambda path: "nfs4")
    with pytest.raises(StoreError, match="network file system") as caught:
        Store.open(tmp_path / "s")
    assert caught.value.reason == "network-file-system"
    assert not (tmp_path / "s").exists()
    assert filesystem.MOUNTS.exists()


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "drvfs")),
        *((kind, True) for kind in ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.nfs")),
        *((kind, False) for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.ext4", "virtiofs", "")),
    ],
)
def test_types(kind, network):
    assert is_network(kind) is network


def test_the_last_of_two_mounts_on_one_directory_counts(tmp_path):
    (tmp_path / "mounts").write_text(TABLE + "26 22 0:43 / /home rw - tmpfs tmpfs rw\n")
    assert type_of("/home/me", tmp_path / "mounts") == "tmpfs"


def test_links_are_followed_before_the_type_is_asked(tmp_path):
    (tmp_path / "mounts").write_text(f"21 1 8:1 / / rw - ext4 d rw\n22 21 0:40 / {tmp_path}/far rw - nfs4 s:/ rw\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("far")
    assert type_of(tmp_path / "near" / "store", tmp_path / "mounts") == "nfs4"
    assert type_of(tmp_path / "nearby", tmp_path / "mounts") == "ext4"


def test_without_a_table_of_mounts_nothing_is_known(tmp_path):
    assert type_of(tmp_path, tmp_path / "none") == ""


# --- paths ----------------------------------------------------------------------------------


def works(root: Path) -> None:
    """A store in `root` keeps what it is given, also for who opens it anew."""
    opened = Store.open(root)
    assert opened.write([Draft("fx", KEY, b"value")]) in ([""], ["present"])
    opened.close()
    opened = Store.open(root, create=False)
    ((_, record),) = opened.variants("fx", KEY)
    assert opened.read(record) == b"value"
    opened.close()


@pytest.mark.parametrize(
    "name",
    ["données", "カーネル", "with blank", "quote's \"two\"", "$HOME", "-rf", "line\nbreak", "x" * 255, os.fsdecode(b"\xff\xfe")],
    ids=["latin", "kana", "blank", "quotes", "dollar", "dash", "newline", "255", "bytes"],
)
def test_directories_of_any_name(tmp_path, name):
    works(tmp_path / name)


def test_very_long_paths(tmp_path):
    """Up to what the kernel takes; past it one sentence, and nothing half made."""
    root = tmp_path
    while len(str(root)) < 3700:
        root /= "d" * 200
    root.mkdir(parents=True)
    works(root / "s")
    for more in (range(30), range(3)):
        with pytest.raises(StoreError, match=r"cannot be used: File name too long\. Set KCACHE_DIR"):
            Store.open(root.joinpath(*(f"{n}" * 150 for n in more)))
    assert [path.name for path in root.iterdir()] == ["s"]


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(StoreError, match="File name too long"):
        Store.open(tmp_path / ("x" * 256))


def test_a_link_to_a_directory_is_that_directory(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    works(tmp_path / "link")
    one, two = Store.open(tmp_path / "link"), Store.open(tmp_path / "disk")
    two.write([Draft("aot", KEY, b"through the other name")])
    assert one.count() == 2
    one.close()
    two.close()


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "nothing").symlink_to("missing")
    with pytest.raises(StoreError, match=f"is a link to nothing. Make {tmp_path}/missing"):
        Store.open(tmp_path / "nothing")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError):
        Store.open(tmp_path / "loop")


def test_a_link_in_place_of_the_store_or_of_a_file_is_refused(tmp_path):
    works(tmp_path / "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "v1").symlink_to(tmp_path / "s" / "v1")
    with pytest.raises(StoreError, match="not made by kcache"):
        Store.open(tmp_path / "t")
    for name in ("data.mdb", "lock.mdb", "holders"):
        file, aside = tmp_path / "s" / "v1" / name, tmp_path / name
        file.rename(aside)
        file.symlink_to(aside)
        with pytest.raises(StoreError, match=f"{name} is not a file"):
            Store.open(tmp_path / "s")
        file.unlink()
        aside.rename(file)
    works(tmp_path / "s")


# --- whose it is ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "v1", "v1/data.mdb", "v1/lock.mdb", "v1/holders"])
@pytest.mark.parametrize("more", [0o020, 0o002], ids=["group", "others"])
def test_what_others_may_write_is_refused_with_the_command_that_mends_it(tmp_path, name, more):
    root = tmp_path / "it's a store"
    works(root)
    path = root / name
    path.chmod(path.stat().st_mode | more)
    with pytest.raises(StoreError, match=r"others may write to .* is run\. Run: chmod") as caught:
        Store.open(root)
    subprocess.run(str(caught.value).partition("Run: ")[2], shell=True, check=True)
    works(root)


def test_a_sticky_directory_of_everybodys_will_do(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    works(tmp_path / "tmp")
    assert stat.S_IMODE((tmp_path / "tmp" / "v1").stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) & 0o077 for f in (tmp_path / "tmp" / "v1").glob("*.mdb")} == {0}


AS_ANOTHER = """
import os, sys
from pathlib import Path
import platformdirs, platformdirs.unix, tempfile
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.digest import Key, Part
from kcache.errors import KcacheError
from kcache.store import Store
os.setgid(54321)
os.setuid(54321)
os.chdir("/")
"""


def as_another(code: str, *arguments: object, **env: str) -> str:
    """What a process of user 54321, whom the machine does not know, prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOME", "XDG", "KCACHE"))}
    command = [sys.executable, "-c", AS_ANOTHER + code, *map(str, arguments)]
    done = subprocess.run(command, env={**environment, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be two users")
OPEN = """
try:
    Store.open(Path(sys.argv[1])).close()
    print("opened")
except KcacheError as error:
    print(error)
"""


@ROOT
def test_two_users_with_one_directory(tmp_path):
    shared = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        shared.chmod(0o1777)
        works(shared)
        assert as_another(OPEN, shared) == f"{shared}/v1 belongs to user 0. Set KCACHE_DIR to a directory of your own\n"
        shared.chmod(0o700)
        assert "Permission denied. Set KCACHE_DIR to another one" in as_another(OPEN, shared)
        works(shared)
        theirs = shared / "theirs"
        theirs.mkdir()
        os.chown(theirs, 54321, 54321)
        with pytest.raises(StoreError, match="belongs to user 54321"):
            Store.open(theirs)
        assert not list(theirs.iterdir())
    finally:
        shutil.rmtree(shared)


NO_HOME = """
settings = Settings.load()
cache = Cache.open(settings, Stats())
key = Key.of([Part.of("name", "a")])
cache.put("fx", key, b"value")
cache.flush()
print(settings.dir, settings.origins["dir"], cache.get("fx", key))
cache.close()
"""


@ROOT
@pytest.mark.parametrize("home", [None, "", "/nonexistent"])
def test_a_container_without_a_home_directory(home):
    """The user is none that the machine knows: the store goes to the temporary directory, and that is said once."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(place, 54321, 54321)
        said = as_another(NO_HOME, TMPDIR=str(place), **({} if home is None else {"HOME": home}))
        assert f"{place}/kcache-54321 fallback b'value'\n" in said
        assert said.count("Set KCACHE_DIR to choose a directory") == 1
        assert [path.name for path in place.iterdir()] == ["kcache-54321"]
    finally:
        shutil.rmtree(place)
