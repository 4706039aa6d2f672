"""The store: real LMDB, several processes, kills, damage, a bound on its size. One test per promise."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kcache import datafile, errors, place, room, rows, store
from kcache.counters import Stats
from kcache.digest import Digest, Key, Part
from kcache.draft import Draft
from kcache.errors import Damaged, NewerStore, StoreError
from kcache.evict import Row, plan
from kcache.store import Store
from kcache.units import GIB, MIB

NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def key(name: object) -> Key:
    return Key.of([Part.of("name", str(name))])


def draft(name: object, value: bytes = b"value", **more) -> Draft:
    return Draft(**{"layer": "fx", "key": key(name), "value": value, "created_ns": 1, **more})


def value_of(opened: Store, name: object, layer: str = "fx") -> bytes | None:
    found = opened.variants(layer, key(name))
    return opened.read(found[0][1]) if found else None


@pytest.fixture
def stats() -> Stats:
    return Stats()


@pytest.fixture
def opened(tmp_path, stats):
    it = Store.open(tmp_path / "s", max_size=64 * MIB, stats=stats)
    yield it
    it.close()


def run(code: str, *args: object) -> subprocess.Popen:
    """A process that runs `code` with `args` in `sys.argv[1:]`."""
    head = "import os, sys, time\nfrom pathlib import Path\nfrom kcache.store import *\n"
    head += "from kcache.draft import Draft\nfrom kcache.digest import *\n"
    head += "def key(n): return Key.of([Part.of('name', str(n))])\n"
    return subprocess.Popen([sys.executable, "-c", head + code, *map(str, args)], stdout=subprocess.PIPE)


# --- the directory --------------------------------------------------------------------------


def test_directory_is_made_whole_and_private(opened, tmp_path):
    assert sorted(os.listdir(tmp_path / "s")) == ["v1"]
    assert sorted(os.listdir(opened.home)) == ["CACHEDIR.TAG", "README", "data.mdb", "holders", "lock.mdb"]
    assert stat.S_IMODE(opened.home.stat().st_mode) == 0o700
    assert (opened.home / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert (opened.home / "README").read_text().count("\n") == 4


def test_new_store_is_on_the_disk_before_and_after_it_gets_its_name(tmp_path, monkeypatch):
    """Else a power loss could take the directory away under a file that was synced."""
    done = []
    sync, rename = os.fsync, os.rename

    def seen(act, name):
        return lambda *args: (done.append((name, os.readlink(f"/proc/self/fd/{args[0]}") if name == "sync" else args[1])), act(*args))[1]

    monkeypatch.setattr(os, "fsync", seen(sync, "sync"))
    monkeypatch.setattr(os, "rename", seen(rename, "rename"))
    Store.open(tmp_path / "s").close()
    (first, aside), named, last = done
    assert first == "sync" and Path(aside).name.startswith(".v1-")
    assert named == ("rename", tmp_path / "s" / "v1")
    assert last == ("sync", str(tmp_path / "s"))


def test_missing_store_is_not_made_unasked(tmp_path):
    with pytest.raises(StoreError, match="no kcache store"):
        Store.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_file_in_place_of_the_directory_is_left_alone(tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises(StoreError, match="is not a directory"):
        Store.open(tmp_path / "f")
    assert (tmp_path / "f").read_text() == "mine"


@pytest.mark.parametrize("name", ["thesis.txt", "v1/thesis.txt"])
def test_directory_with_other_files_is_left_alone(tmp_path, name):
    (tmp_path / "d" / name).parent.mkdir(parents=True)
    (tmp_path / "d" / name).write_text("mine")
    with pytest.raises(StoreError, match=r"holds other files|was not made by kcache"):
        Store.open(tmp_path / "d")
    assert [p.name for p in (tmp_path / "d").rglob("*") if p.is_file()] == ["thesis.txt"]


@NOT_ROOT
def test_readonly_directory_is_refused(tmp_path):
    (tmp_path / "d").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(tmp_path / "d")


def test_directory_that_others_may_write_is_refused(opened):
    opened.close()
    opened.home.chmod(0o770)
    with pytest.raises(StoreError, match="chmod 700"):
        Store.open(opened.root)


def test_newer_format_is_left_alone(opened, tmp_path):
    opened.swap("meta", b"format", b"1", b"2")
    opened.close()
    before = (opened.home / "data.mdb").read_bytes()
    with pytest.raises(NewerStore, match="format 2"):
        Store.open(tmp_path / "s")
    assert (opened.home / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("content", [b"garbage" * 9999, b"", b"\0" * 8192], ids=["garbage", "empty", "zeros"])
def test_unreadable_file_is_set_aside_and_counted(opened, stats, content):
    opened.write([draft("a")])
    opened.close()
    (opened.home / "data.mdb").write_bytes(content)
    again = Store.open(opened.root, stats=stats)
    assert value_of(again, "a") is None
    assert again.write([draft("a")]) == [""]
    assert value_of(again, "a") == b"value"
    again.close()
    if content:
        assert stats.snapshot().reasons == {("store", "damaged", "unreadable-store"): 1}
        assert [p.name[:14] for p in opened.root.iterdir() if p.name != "v1"] == ["v1.unreadable-"]


def test_file_cut_short_is_set_aside_and_never_a_bus_error(opened, stats):
    opened.write([draft(n, os.urandom(MIB)) for n in range(8)])
    opened.close()
    os.truncate(opened.home / "data.mdb", 2 * MIB)
    again = Store.open(opened.root, stats=stats)
    assert value_of(again, 3) is None
    assert stats.snapshot().reasons == {("store", "damaged", "unreadable-store"): 1}
    again.close()


def test_tree_broken_inside_is_damage_and_not_a_crash(opened, stats):
    """Pages overwritten with zeros: whatever LMDB makes of them, the process lives and the store recovers."""
    code = """
from kcache.errors import Damaged, StoreError
s = Store.open(Path(sys.argv[1]))
for n in range(40):
    try:
        found = s.variants("fx", key(n))
        got = [s.read(r) for _, r in found]
        assert all(len(g) == 3000 for g in got)
    except (Damaged, StoreError) as e:
        print(type(e).__name__)
s.write([Draft("fx", key("new"), b"new")])
assert s.read(s.variants("fx", key("new"))[0][1]) == b"new"
"""
    opened.write([draft(n, os.urandom(3000)) for n in range(40)])
    opened.close()
    data = bytearray((opened.home / "data.mdb").read_bytes())
    data[4096 * 8 : 4096 * 20] = bytes(4096 * 12)
    (opened.home / "data.mdb").write_bytes(data)
    process = run(code, opened.root)
    process.communicate(timeout=20)
    assert process.returncode == 0


# --- reading and writing --------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 512, 513, 5000, MIB, 3 * MIB + 17])
def test_round_trip(opened, size):
    value = os.urandom(size)
    assert opened.write([draft("a", value, cost_ns=5, label="k", links=[("aot", key("b"))])]) == [""]
    ((_, record),) = opened.variants("fx", key("a"))
    assert opened.read(record) == value
    assert (record.cost_ns, record.label, record.links, record.raw_size) == (5, "k", (("aot", key("b")),), size)
    assert opened.variants("aot", key("a")) == []


def test_first_writer_of_a_variant_wins(opened):
    assert opened.write([draft("a", b"first", guards="g", created_ns=2), draft("a", b"other", guards="h")]) == ["", ""]
    assert opened.write([draft("a", b"second", guards="g")]) == ["present"]
    found = opened.variants("fx", key("a"))
    assert [(r.guards, opened.read(r)) for _, r in found] == [("h", b"other"), ("g", b"first")]


def test_equal_pieces_are_stored_once_and_go_with_the_last_entry(opened):
    cubin = os.urandom(2 * MIB)
    opened.write([draft(n, b"head%d" % n + cubin + b"tail", pieces=[cubin]) for n in range(5)])
    assert opened.live_bytes() < 3 * MIB
    assert value_of(opened, 4) == b"head4" + cubin + b"tail"
    rows_ = [item.id for item in opened.scan()]
    assert opened.delete(rows_[:4]) == 4
    assert opened.blob(Digest.of(cubin)) == cubin
    assert opened.delete(rows_) == 1
    with pytest.raises(Damaged) as caught:
        opened.blob(Digest.of(cubin))
    assert caught.value.reason == errors.DAMAGE_MISSING_BLOB
    assert opened.live_bytes() < 200_000


def test_parts_come_back_and_leave_with_the_entry(opened):
    parts = [Part.of("graph", "g" * 900, readable=True), Part.of("torch", "2.13")]
    opened.write([draft("a", parts=parts), draft("a", guards="g", parts=parts)])
    assert opened.parts("fx", key("a")) == parts
    assert opened.parts("aot", key("a")) == []
    opened.delete([item.id for item in opened.scan()])
    assert opened.parts("fx", key("a")) == []
    with opened.transaction() as txn:
        assert {table: txn.entries(table) for table in rows.TABLES} == dict.fromkeys(rows.TABLES, 0) | {"meta": 1}


def test_scan_yields_every_row_of_a_layer(opened):
    opened.write([draft(n) for n in range(600)] + [draft(n, layer="aot") for n in range(3)])
    assert len({item.id for item in opened.scan()}) == 603
    assert {(item.layer, item.key) for item in opened.scan("aot")} == {("aot", key(n)) for n in range(3)}


def test_swap_is_compare_and_set(opened):
    assert opened.swap("leases", b"k", None, b"one")
    assert not opened.swap("leases", b"k", None, b"two")
    assert opened.swap("leases", b"k", b"one", b"two")
    assert opened.fetch("leases", b"k") == b"two"
    assert opened.swap("leases", b"k", b"two", None)
    assert opened.fetch("leases", b"k") is None


def test_runs_are_kept_and_summed(opened):
    opened.add_run({"program": "a", "layers": {"fx": {"hit": 2}}, "saved_ns": {"fx": 7}}, now_ns=1)
    opened.add_run({"program": "b", "layers": {"fx": {"hit": 1, "miss": 4}}}, now_ns=2)
    assert [r["program"] for r in opened.runs()] == ["b", "a"]
    assert opened.counters() == {"fx": {"hit": 3, "miss": 4, "saved_ns": 7}}


def test_readonly_store_reads_and_refuses_to_write(opened):
    opened.write([draft("a")])
    opened.close()
    reader = Store.open(opened.root, readonly=True)
    assert value_of(reader, "a") == b"value"
    with pytest.raises(StoreError, match="read-only"):
        reader.write([draft("b")])
    reader.close()
    with pytest.raises(StoreError, match="closed"):
        reader.count()


def test_two_stores_of_one_process_share_the_file(opened, tmp_path):
    other = Store.open(tmp_path / "s" / ".." / "s")
    other.write([draft("a")])
    other.close()
    assert value_of(opened, "a") == b"value"


# --- damage ---------------------------------------------------------------------------------


def test_damaged_blob_is_reported_and_written_anew(opened):
    value = os.urandom(5000)
    opened.write([draft("a", value)])
    ((variant, record),) = opened.variants("fx", key("a"))
    row = Digest.of(value).raw + b"\0\0\0\0"
    frame = opened.fetch("blobs", row)
    assert opened.swap("blobs", row, frame, frame[:-1] + bytes([frame[-1] ^ 1]))
    with pytest.raises(Damaged) as caught:
        opened.read(record)
    assert caught.value.reason == errors.DAMAGE_BAD_CHECKSUM
    opened.drop("fx", key("a"), variant, record)
    assert value_of(opened, "a") is None
    assert opened.write([draft("a", value)]) == [""]
    assert value_of(opened, "a") == value


def test_record_moved_to_another_key_is_dropped_and_counted(opened, stats):
    opened.write([draft("a")])
    (row,) = [item.id for item in opened.scan()]
    record = opened.fetch("index", row)
    for place_ in (row.replace(key("a").raw, key("b").raw), row[:-16] + b"x" * 16):
        opened.swap("index", place_, None, record)
    assert value_of(opened, "b") is None
    assert value_of(opened, "a") == b"value"
    assert stats.snapshot().reasons == {("fx", "damaged", "wrong-key"): 2}
    assert opened.count() == 1


# --- processes ------------------------------------------------------------------------------

WRITE_MANY = """
s = Store.open(Path(sys.argv[1]))
print("ready", flush=True)
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    s.write([Draft("fx", key(n), b"%d " % n * 3000, created_ns=n)])
"""


def test_two_processes_write_at_once(opened):
    writers = [run(WRITE_MANY, opened.root, 0, 60), run(WRITE_MANY, opened.root, 30, 90)]
    for writer in writers:
        writer.communicate(timeout=20)
        assert writer.returncode == 0
    assert opened.count() == 90
    assert all(value_of(opened, n) == b"%d " % n * 3000 for n in range(90))


def test_many_processes_make_the_store_at_once(tmp_path):
    makers = [run(WRITE_MANY, tmp_path / "new", n, n + 1) for n in range(6)]
    for maker in makers:
        maker.communicate(timeout=20)
        assert maker.returncode == 0
    made = Store.open(tmp_path / "new", create=False)
    assert made.count() == 6
    made.close()
    assert os.listdir(tmp_path / "new") == ["v1"]


def test_killed_writer_loses_nothing_that_was_committed(tmp_path):
    for round_ in range(4):
        writer = run(WRITE_MANY, tmp_path / "s", round_ * 100_000, (round_ + 1) * 100_000)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.03 + 0.02 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        opened = Store.open(tmp_path / "s")
        count = 0
        for item in opened.scan():
            assert opened.read(item.record) == b"%d " % item.record.created_ns * 3000
            count += 1
        assert count >= round_
        assert opened.write([draft(f"after {round_}")]) == [""]
        opened.delete([item.id for item in opened.scan() if item.record.raw_size < 100])
        opened.close()


def test_forked_child_opens_the_store_anew(opened):
    opened.write([draft("a")])
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert value_of(opened, "a") == b"value"

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(5):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    good = value_of(opened, "a") == b"value" and opened.write([draft(f"child {n}")]) == [""]
                    code = 0 if good else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert value_of(opened, f"child {n}") == b"value"
    finally:
        stop.set()
        reader.join()
    assert opened.write([draft("b")]) == [""]


def test_nothing_reads_the_files_while_the_store_is_open():
    """Closing a descriptor of lock.mdb would drop LMDB's locks: few modules name the files, for `stat` or `alone`."""
    package = Path(store.__file__).parent
    named = {p.name for p in package.glob("*.py") if ".mdb" in p.read_text()}
    assert named <= {"store.py", "place.py", "datafile.py", "holders.py", "compact.py"}
    for module in (store, place):
        assert "open(home / " not in Path(module.__file__).read_text()


# --- size -----------------------------------------------------------------------------------


def test_live_bytes_stay_below_the_limit(tmp_path):
    limit = 16 * MIB
    opened = Store.open(tmp_path / "s", max_size=limit)
    for n in range(60):
        assert opened.write([draft(n, os.urandom(MIB), created_ns=n)]) == [""]
        assert opened.live_bytes() <= room.FILL * limit
    assert value_of(opened, 59) is not None
    assert value_of(opened, 0) is None
    assert opened.size_on_disk() <= limit
    assert opened.write([draft("huge", os.urandom(4 * MIB))]) == ["too-large"]
    assert opened.write([draft(("batch", n), os.urandom(MIB), created_ns=100 + n) for n in range(20)]) == [""] * 20
    assert opened.live_bytes() <= room.FILL * limit
    assert value_of(opened, ("batch", 19)) is not None
    opened.close()


def test_eviction_leaves_dear_entries_when_others_store_and_evict_meanwhile(tmp_path, monkeypatch):
    opened = Store.open(tmp_path / "s", max_size=16 * MIB)
    opened.write([draft(("dear", n), os.urandom(MIB), cost_ns=100 * 10**9) for n in range(3)])
    opened.write([draft(("old", n), os.urandom(MIB)) for n in range(3)])
    real = room.planned

    def planned_then_overtaken(given: Store) -> list[list[Row]]:
        monkeypatch.setattr(room, "planned", real)
        order = real(given)
        opened.delete([group[0].id for group in order[:3]])
        opened.write([draft(("new", n), os.urandom(MIB), created_ns=2) for n in range(3)])
        return order

    monkeypatch.setattr(room, "planned", planned_then_overtaken)
    assert opened.evict(4 * MIB)
    assert all(value_of(opened, ("dear", n)) for n in range(3))
    opened.close()


def test_recently_used_entries_stay(tmp_path):
    opened = Store.open(tmp_path / "s", max_size=16 * MIB)
    for n in range(8):
        opened.write([draft(n, os.urandom(MIB), created_ns=n)])
    opened.touch([item.id for item in opened.scan() if item.key == key(0)], now_ns=10**18)
    assert opened.evict(3 * MIB)
    assert value_of(opened, 0) is not None
    assert value_of(opened, 1) is None
    opened.close()


def test_touch_writes_at_most_once_an_hour(opened):
    opened.write([draft("a")])
    (row,) = [item.id for item in opened.scan()]
    hour = store.TOUCH_EVERY_NS
    seen = []
    for now in (2 * hour, 2 * hour + 5, 3 * hour + 5):
        opened.touch([row, b"fx\0" + bytes(48)], now_ns=now)
        seen.append(next(opened.scan()).used_ns)
    assert seen == [2 * hour, 2 * hour, 3 * hour + 5]


def test_full_map_evicts_then_skips(tmp_path, monkeypatch):
    real = datafile.open_lmdb
    monkeypatch.setattr(datafile, "open_lmdb", lambda home, size, *, readonly: real(home, 4 * MIB, readonly=readonly))
    opened = Store.open(tmp_path / "s", max_size=GIB)
    results = [opened.write([draft(n, os.urandom(MIB // 2), created_ns=n)]) for n in range(20)]
    assert results == [[""]] * 20
    assert opened.write([draft("huge", os.urandom(6 * MIB))]) == ["map-full"]
    opened.close()


def test_small_address_space_gets_a_smaller_map(tmp_path):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
s = Store.open(Path(sys.argv[1]))
assert s.write([Draft("fx", key(1), b"x")]) == [""]
print(s._database.env.info()["map_size"])
"""
    process = run(code, tmp_path / "s")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert int(out) == 4 * GIB


def test_linked_entries_leave_together_and_cost_keeps(tmp_path):
    second = 10**9
    listed = [
        Row(b"1", "fx", key(1), used_ns=1 * second),
        Row(b"2", "aot", key(2), used_ns=5 * second, links=(("fx", key(1)),)),
        Row(b"3", "fx", key(3), used_ns=2 * second),
        Row(b"4", "fx", key(4), used_ns=2 * second, cost_ns=10 * second),
        Row(b"5", "fx", key(3), used_ns=3 * second),
    ]
    assert [sorted(row.id for row in group) for group in plan(listed)] == [[b"3", b"5"], [b"1", b"2"], [b"4"]]
