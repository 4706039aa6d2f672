"""Network file systems are told by type, whatever the path looks like."""

from __future__ import annotations

import pytest

from kcache import filesystem, place
from kcache.errors import StoreError
from kcache.filesystem import is_network, type_of
from kcache.store import Store

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


@pytest.mark.parametrize("name", ["données", "with blank", "x" * 200])
def test_paths_of_any_name(tmp_path, name):
    opened = Store.open(tmp_path / name)
    assert opened.count() == 0
    opened.close()


def test_home_that_is_a_link_and_file_that_others_may_write_are_refused(tmp_path):
    Store.open(tmp_path / "s").close()
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "v1").symlink_to(tmp_path / "s" / "v1")
    with pytest.raises(StoreError, match="not made by kcache"):
        Store.open(tmp_path / "t")
    (tmp_path / "s" / "v1" / "data.mdb").chmod(0o660)
    with pytest.raises(StoreError, match="chmod 600"):
        Store.open(tmp_path / "s")
