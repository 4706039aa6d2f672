"""Compaction: the file shrinks, nothing is lost, nobody is disturbed, and a kill at any moment leaves a whole store."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time

import pytest

from kcache import compact, database
from kcache.digest import Key, Part
from kcache.draft import Draft
from kcache.errors import NewerStore, StoreError
from kcache.store import Store
from kcache.units import MIB


def key(name: object) -> Key:
    return Key.of([Part.of("name", str(name))])


def value(n: int) -> bytes:
    return random.Random(n).randbytes(100_000)


@pytest.fixture
def churned(tmp_path):
    """A store that held 100 entries of 100 kB and holds the first ten, with a run and their part lists."""
    root = tmp_path / os.fsdecode(b"odd name \xff")
    opened = Store.open(root, max_size=64 * MIB)
    parts = [Part.of("graph", "g" * 900, readable=True)]
    opened.write([Draft("fx", key(n), value(n), parts=parts, created_ns=n + 1) for n in range(100)])
    opened.delete([item.id for item in opened.scan() if item.record.created_ns > 10])
    opened.add_run({"program": "p", "layers": {"fx": {"hit": 1}}})
    opened.close()
    return root


def assert_whole(root) -> None:
    opened = Store.open(root, create=False)
    try:
        assert sorted(item.record.created_ns for item in opened.scan()) == list(range(1, 11))
        for n in range(10):
            ((_, record),) = opened.variants("fx", key(n))
            assert opened.read(record) == value(n)
            assert opened.parts("fx", key(n)) == [Part.of("graph", "g" * 900, readable=True)]
        assert opened.runs()[0]["program"] == "p"
        assert opened.write([Draft("fx", key("new"), b"new")]) == [""]
        opened.delete([item.id for item in opened.scan() if item.key == key("new")])
    finally:
        opened.close()


def test_the_file_shrinks_and_nothing_is_lost(churned):
    before, after = compact.compact(churned)
    assert before > 10 * 10**6
    assert after < 1.2 * 10**6
    assert os.stat(churned / "v1" / "data.mdb").st_blocks * 512 == after
    assert stat.S_IMODE((churned / "v1" / "data.mdb").stat().st_mode) == 0o600
    assert os.listdir(churned) == ["v1"]
    assert sorted(os.listdir(churned / "v1")) == ["CACHEDIR.TAG", "README", "data.mdb", "holders", "lock.mdb"]
    assert_whole(churned)


HOLD = """
import sys, time
from pathlib import Path
from kcache.store import Store
opened = Store.open(Path(sys.argv[1]), readonly=sys.argv[2] == "read")
print("open", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_store_in_use_is_refused_with_the_pid_and_left_alone(churned, way):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(churned), way], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"open\n"
        before = (churned / "v1" / "data.mdb").stat()
        with pytest.raises(StoreError, match=rf"in use by 1 other processes \({holder.pid}\)") as caught:
            compact.compact(churned)
        assert caught.value.reason == "in-use"
        assert (churned / "v1" / "data.mdb").stat().st_ino == before.st_ino
    finally:
        holder.kill()
        holder.communicate()
    compact.compact(churned)
    assert_whole(churned)


def test_a_store_that_this_process_has_open_is_refused(churned):
    opened = Store.open(churned)
    with pytest.raises(StoreError, match="open in this process"):
        compact.compact(churned)
    opened.close()
    assert_whole(churned)


def test_whoever_opens_it_meanwhile_is_busy_and_not_stuck(churned):
    with database.alone(churned / "v1"):
        started = time.monotonic()
        other = subprocess.run([sys.executable, "-c", HOLD, str(churned), "write"], capture_output=True, text=True)
        assert time.monotonic() - started < 10
    assert "StoreError" in other.stderr and "another process" in other.stderr
    assert_whole(churned)


COMPACT = """
import os, signal, sys
from pathlib import Path
from kcache import compact, datafile
moment, calls = int(sys.argv[2]), 0

def dies(function):
    def call(*arguments, **more):
        global calls
        for when in (0, 1):
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            if when == 0:
                result = function(*arguments, **more)
        return result
    return call

for owner, name in [(datafile, "problems"), (compact, "_survey"), (compact, "_copy"),
                    (os, "chmod"), (os, "fsync"), (os, "rename"), (compact.tempfile, "mkdtemp"), (compact.shutil, "rmtree")]:
    setattr(owner, name, dies(getattr(owner, name)))
compact.compact(Path(sys.argv[1]))
"""


def test_a_kill_before_and_after_each_step_leaves_a_whole_store(churned):
    moments = 0
    while True:
        done = subprocess.run(
            [sys.executable, "-c", COMPACT, str(churned), str(moments)], capture_output=True, text=True
        )
        assert_whole(churned)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        moments += 1
    assert moments >= 20
    assert os.listdir(churned) == ["v1"]


def test_a_newer_format_is_left_alone(churned):
    opened = Store.open(churned)
    opened.swap("meta", b"format", b"1", b"2")
    opened.close()
    before = (churned / "v1" / "data.mdb").read_bytes()
    with pytest.raises(NewerStore, match="format 2"):
        compact.compact(churned)
    assert (churned / "v1" / "data.mdb").read_bytes() == before


def test_a_disk_without_room_is_told_beforehand(churned, monkeypatch):
    class Full:
        f_bavail, f_frsize = 100, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    with pytest.raises(StoreError, match="has 400 KiB free") as caught:
        compact.compact(churned)
    assert caught.value.reason == "disk-full"
    monkeypatch.undo()
    assert_whole(churned)


def test_a_file_size_limit_ends_the_copy_and_not_the_store(churned):
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
    code += "from pathlib import Path; from kcache.compact import compact; compact(Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(churned)], capture_output=True, text=True)
    assert "StoreError" in done.stderr and "(file-size-limit)" in done.stderr, done.stderr
    assert os.listdir(churned) == ["v1"]
    assert_whole(churned)


def test_a_damaged_tree_is_refused_with_the_command_that_mends_it(churned):
    file = churned / "v1" / "data.mdb"
    data = bytearray(file.read_bytes())
    data[4096 * 8 : 4096 * 40] = bytes(4096 * 32)
    file.write_bytes(data)
    with pytest.raises(StoreError, match="kcache verify --repair"):
        compact.compact(churned)
    assert file.read_bytes() == data
