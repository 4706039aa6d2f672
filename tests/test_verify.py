"""`kcache verify`: what is bad is said by layer and reason, everything else is left, and a repaired store is sound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcache.digest import Digest, Key, Part
from kcache.draft import Draft
from kcache.rows import prefix_of, variant_id
from kcache.store import Store
from kcache.units import MIB

main = pytest.importorskip("kcache_cli.main", reason="kcache is not installed (pip install -e .)")

FX, AOT, SHARED = os.urandom(3000), os.urandom(3000), os.urandom(5000)
PARTS = [Part.of("graph", "g" * 900, readable=True), Part.of("torch", "2.13")]


def key(name: str) -> Key:
    return Key.of([Part.of("name", name)])


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A store with an aot entry that names an fx entry, two triton entries that share a piece, and a lone entry."""
    monkeypatch.setenv("KCACHE_DIR", str(tmp_path / "s"))
    opened = Store.open(tmp_path / "s", max_size=64 * MIB)
    opened.write(
        [
            Draft("aot", key("graph"), AOT, links=[("fx", key("code"))], parts=PARTS),
            Draft("fx", key("code"), FX),
            Draft("triton", key("one"), b"1" + SHARED, pieces=[SHARED]),
            Draft("triton", key("two"), b"2" + SHARED, pieces=[SHARED]),
            Draft("host", key("fact"), b"small"),
        ]
    )
    opened.close()
    return tmp_path / "s"


def call(*args: str):
    return CliRunner().invoke(main.cli, ["verify", *args])


def change(root, table: str, row: bytes, by=lambda data: data[:-1] + bytes([data[-1] ^ 1])) -> None:
    opened = Store.open(root)
    data = opened.fetch(table, row)
    assert data is not None and opened.swap(table, row, data, by(data))
    opened.close()


def frame_row(content: bytes) -> bytes:
    return Digest.of(content).raw + bytes(4)


def left(root) -> list[str]:
    opened = Store.open(root)
    try:
        for item in opened.scan():
            opened.read(item.record)
        return sorted(item.layer for item in opened.scan())
    finally:
        opened.close()


ALL = ["aot", "fx", "host", "triton", "triton"]


def test_a_sound_store(root):
    result = call()
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["Tree:", "sound"],
        ["Entries:", "5", "10.7", "KiB"],
        ["Bad:", "0"],
    ]
    facts = json.loads(call("--json").stdout)
    assert facts == {
        "dir": str(root),
        "tree": {"checked": True, "problems": []},
        "set_aside": None,
        "entries": 5,
        "bytes": 3000 + 3000 + 5000 + 2 + 5,
        "bad": [],
        "strays": {},
        "removed": 0,
    }


ROW = prefix_of("aot", key("graph"))

DAMAGE = {
    "frame": (("blobs", frame_row(FX)), {("fx", "bad-checksum")}, ["host", "triton", "triton"]),
    "shared frame": (("blobs", frame_row(SHARED)), {("triton", "bad-checksum")}, ["aot", "fx", "host"]),
    "record": (("index", ROW + variant_id("")), {("aot", "bad-checksum")}, ["fx", "host", "triton", "triton"]),
    "part list": (("parts", ROW), {("aot", "parts: bad-checksum")}, ["host", "triton", "triton"]),
    "part's text": (("blobs", frame_row(b"g" * 900)), {("aot", "parts: bad-checksum")}, ["host", "triton", "triton"]),
}


@pytest.mark.parametrize(("where", "found", "rest"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_said_by_layer_and_reason_and_removed_with_what_is_linked(root, where, found, rest):
    change(root, *where)
    for _ in range(2):  # looking changes nothing
        result = call("--json")
        facts = json.loads(result.stdout)
        assert result.exit_code == 1
        assert {(bad["layer"], bad["reason"]) for bad in facts["bad"]} == found
        assert facts["entries"] == 5
    result = call("--repair")
    assert result.exit_code == 1
    assert f"Removed {5 - len(rest)} entr" in result.stdout
    assert call().exit_code == 0
    assert left(root) == rest


def test_people_read_what_to_run(root):
    change(root, "blobs", frame_row(FX))
    lines = call().stdout.splitlines()
    assert lines[2].split() == ["Bad:", "1"]
    assert lines[3:] == ["       1  fx, bad-checksum", "Run: kcache verify --repair"]


def test_frame_that_is_gone_and_length_that_is_wrong(root):
    opened = Store.open(root)
    with opened.transaction(write=True) as txn:
        txn.erase(Digest.of(FX))
    opened.close()
    assert "1  fx, missing-blob" in call().stdout
    assert call("--repair").exit_code == 1
    assert call().exit_code == 0


def test_frames_that_nothing_names_are_freed_and_counts_set_right(root):
    """A record that was damaged leaves its frames behind, since nobody knows any more which they were."""
    opened = Store.open(root)
    with opened.transaction(write=True) as txn:
        txn.remove_row("index", prefix_of("host", key("fact")) + variant_id(""))
        txn.remove_row("index", prefix_of("triton", key("one")) + variant_id(""))
        txn.remove_row("index", prefix_of("fx", key("code")) + variant_id(""))
    before = opened.live_bytes()
    opened.close()
    result = call()
    assert result.exit_code == 1
    assert "1  store, frame that nothing names" in result.stdout
    assert "2  store, frame counted wrongly" in result.stdout
    assert "Removed 0 entries." in call("--repair").stdout
    assert call().exit_code == 0
    opened = Store.open(root)
    assert opened.live_bytes() <= before
    assert opened.fetch("blobs", frame_row(FX)) is None
    assert opened.fetch("refs", Digest.of(SHARED).raw) == (1).to_bytes(4, "big")
    opened.close()


def test_rows_that_name_no_frame_are_removed(root):
    opened = Store.open(root)
    with opened.transaction(write=True) as txn:
        txn.put("blobs", Digest.of(SHARED).raw[:5], b"cut")
        txn.put("refs", b"x", b"cut")
    opened.close()
    assert "2  store, frame counted wrongly" in call().stdout
    assert call("--repair").exit_code == 1
    assert call().exit_code == 0
    assert left(root) == ALL


def test_a_broken_tree_is_said_without_mapping_it_and_set_aside(root):
    file = root / "v1" / "data.mdb"
    data = bytearray(file.read_bytes())
    data[4096 * 3 : 4096 * 6] = bytes(4096 * 3)
    file.write_bytes(data)
    result = call()
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].split() == ["Tree:", "damaged"]
    assert result.stdout.splitlines()[-1] == "Run: kcache verify --repair"
    assert file.read_bytes() == data
    facts = json.loads(call("--repair", "--json").stdout)
    assert facts["tree"]["problems"]
    assert os.path.dirname(facts["set_aside"]) == str(root)
    assert Path(facts["set_aside"], "data.mdb").read_bytes() == data
    assert call().exit_code == 2  # there is no store until a program makes one
    assert left(root) == []


def test_a_store_in_use_is_read_and_its_tree_is_not_walked(root):
    code = "import sys, time; from pathlib import Path; from kcache.store import Store\n"
    code += "s = Store.open(Path(sys.argv[1])); print('open', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"open\n"
        change(root, "blobs", frame_row(FX))
        result = call()
        assert result.exit_code == 1
        assert result.stdout.splitlines()[0].split() == ["Tree:", "not", "checked", "the", "store", "is", "in", "use"]
        assert "1  fx, bad-checksum" in result.stdout
    finally:
        holder.kill()
        holder.communicate()


def test_entries_without_the_tag_of_the_signing_key_are_bad(root, monkeypatch):
    monkeypatch.setenv("KCACHE_SIGNING_KEY", "a secret of the team")
    facts = json.loads(call("--json").stdout)
    assert [bad["reason"] for bad in facts["bad"]] == ["untagged"] * 5
    assert call("--repair").exit_code == 1
    assert left(root) == []
