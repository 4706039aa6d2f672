"""The cache as the seams use it: lookups, background writes, damage, fork, exit, and memos."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from kcache import writer
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.digest import Digest, Key, Part
from kcache.errors import Damaged, StoreError
from kcache.memo import Memo, Stamp, stamp_files, stamp_tree
from kcache.store import Store
from kcache.units import MIB


def key(name: object) -> Key:
    return Key.of([Part.of("name", str(name))])


@pytest.fixture
def make(tmp_path):
    """Makes caches on one directory, each with counts of its own, and closes them."""
    made = []

    def _make(strict: bool = True, **more) -> Cache:
        cache = Cache.open(Settings(dir=tmp_path / "s", strict=strict, max_size=64 * MIB, **more), Stats())
        made.append(cache)
        return cache

    yield _make
    for cache in made:
        cache.close()


def damage(cache: Cache, value: bytes) -> None:
    """Flip a bit in the stored frame of `value`."""
    row = Digest.of(value).raw + b"\0\0\0\0"
    frame = cache.store.fetch("blobs", row)
    assert cache.store.swap("blobs", row, frame, frame[:-1] + bytes([frame[-1] ^ 1]))


def test_put_then_get_in_this_process_and_in_another_cache(make):
    first = make()
    assert first.get("fx", key(1)) is None
    assert first.put("fx", key(1), b"value" * 1000, cost_ns=7)
    assert first.get("fx", key(1)) == b"value" * 1000
    assert first.flush()
    second = make()
    assert second.get("fx", key(1)) == b"value" * 1000
    assert second.get("aot", key(1)) is None
    assert first.stats.snapshot().layers == {"fx": {"miss": 1, "hit": 1, "stored": 1}}
    assert second.stats.snapshot().layers == {"fx": {"hit": 1}, "aot": {"miss": 1}}
    assert second.stats.snapshot().saved_seconds == 7e-9


def test_entry_is_readable_before_and_counted_after_its_commit(make, monkeypatch):
    cache = make()
    gate, real = threading.Event(), cache.store.write
    monkeypatch.setattr(cache.store, "write", lambda drafts: gate.wait(10) and real(drafts))
    cache.put("fx", key(1), b"value", guards="g", label="k")
    time.sleep(0.1)
    (candidate,) = cache.candidates("fx", key(1))
    assert (candidate.guards, candidate.label, candidate.load()) == ("g", "k", b"value")
    assert cache.stats.snapshot().total("stored") == 0
    assert cache.store.count() == 0
    assert not cache.flush(timeout=0.05)
    gate.set()
    assert cache.flush()
    assert cache.stats.snapshot().total("stored") == 1
    (candidate,) = cache.candidates("fx", key(1))
    assert candidate.load() == b"value"


def test_what_arrives_together_is_one_transaction(make, monkeypatch):
    cache = make()
    batches, real = [], cache.store.write
    monkeypatch.setattr(cache.store, "write", lambda drafts: batches.append(len(drafts)) or real(drafts))
    for n in range(50):
        cache.put("fx", key(n), b"value")
    cache.flush()
    assert sum(batches) == 50
    assert len(batches) <= 2


def test_entries_are_written_without_being_asked(make):
    """No flush, no exit: a steady trickle must not hold a batch back past its age."""
    cache, other = make(), make()
    deadline = time.monotonic() + 3 * writer.MAX_AGE
    cache.put("fx", key("first"), b"value")
    n = 0
    while other.get("fx", key("first")) is None and time.monotonic() < deadline:
        n += 1
        cache.put("fx", key(n), b"value")
        time.sleep(writer.QUIET / 5)
    assert other.get("fx", key("first")) == b"value"


def test_variants_are_told_apart_by_guards(make):
    cache = make()
    cache.put("aot", key(1), b"small", guards="s0 < 10")
    cache.put("aot", key(1), b"large", guards="s0 >= 10")
    cache.put("aot", key(1), b"other", guards="s0 < 10")
    for _ in range(2):
        found = {c.guards: c.load() for c in cache.candidates("aot", key(1)) if c.load() != b"other"}
        assert found == {"s0 < 10": b"small", "s0 >= 10": b"large"}
        cache.flush()
    assert len(cache.candidates("aot", key(1))) == 2
    assert cache.stats.snapshot().reasons[("aot", "skipped", "present")] == 1


def test_damage_is_a_miss_with_a_reason_and_heals(make):
    cache, value = make(strict=False), os.urandom(5000)
    cache.put("fx", key(1), value)
    cache.flush()
    damage(cache, value)
    assert cache.get("fx", key(1)) is None
    assert cache.stats.snapshot().reasons == {
        ("fx", "damaged", "bad-checksum"): 1,
        ("fx", "miss", "damaged: bad-checksum"): 1,
    }
    assert cache.candidates("fx", key(1)) == []
    cache.put("fx", key(1), value)
    cache.flush()
    assert cache.get("fx", key(1)) == value


def test_damage_raises_when_strict_and_from_load_always(make):
    for strict in (True, False):
        cache, value = make(strict=strict), os.urandom(5000)
        cache.put("fx", key(strict), value)
        cache.flush()
        (candidate,) = cache.candidates("fx", key(strict))
        damage(cache, value)
        with pytest.raises(Damaged, match="bad-checksum"):
            cache.get("fx", key(strict)) if strict else candidate.load()
        assert cache.stats.snapshot().total("damaged") == 1


def test_entry_removed_while_it_is_read_is_a_miss_and_no_damage(make):
    cache = make()
    cache.put("fx", key(1), os.urandom(5000))
    cache.flush()
    (candidate,) = cache.candidates("fx", key(1))
    cache.store.clear()
    with pytest.raises(Damaged):
        candidate.load()
    assert cache.stats.snapshot().total("damaged") == 0


def test_full_queue_skips_with_a_reason(make, monkeypatch):
    cache = make()
    monkeypatch.setattr(cache._writer, "_limit", 1000)
    assert not cache.put("fx", key(1), bytes(2000))
    assert cache.put("fx", key(2), bytes(900))
    cache.flush()
    assert cache.put("fx", key(3), bytes(900))
    cache.flush()
    assert cache.stats.snapshot().layers == {"fx": {"skipped": 1, "stored": 2}}
    assert cache.stats.snapshot().reasons == {("fx", "skipped", "queue-full"): 1}


@pytest.mark.parametrize("strict", [True, False])
def test_error_in_the_writer_is_counted_and_does_not_end_it(make, monkeypatch, caplog, strict):
    cache = make(strict=strict)

    def fail(drafts):
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(cache.store, "write", fail)
        for n in range(2):
            cache.put("fx", key(n), b"value")
            if strict:
                with pytest.raises(StoreError, match="no space left"):
                    cache.flush()
            else:
                assert cache.flush()
    assert caplog.messages == ["kcache: nothing was stored: no space left"]
    assert cache.stats.snapshot().reasons == {("fx", "error", "write: StoreError"): 2}
    assert cache.get("fx", key(0)) is None
    cache.put("fx", key(9), b"value")
    cache.flush()
    assert cache.stats.snapshot().layers["fx"]["stored"] == 1


@pytest.mark.parametrize("strict", [True, False])
def test_error_while_reading_is_a_miss(make, monkeypatch, caplog, strict):
    cache = make(strict=strict)

    def fail(layer, name):
        raise StoreError("map resized")

    monkeypatch.setattr(cache.store, "variants", fail)
    if strict:
        with pytest.raises(StoreError):
            cache.get("fx", key(1))
    else:
        assert cache.get("fx", key(1)) is None
        assert cache.get("fx", key(1)) is None
        assert caplog.messages == ["kcache: map resized; compiling without it"]
    assert cache.stats.snapshot().reasons[("fx", "error", "read: StoreError")] == (1 if strict else 2)


def test_parts_before_and_after_commit(make):
    cache = make()
    parts = [Part.of("graph", "add", readable=True), Part.of("torch", "2.13")]
    cache.put("fx", key(1), b"value", parts=parts)
    assert cache.parts("fx", key(1)) == parts
    cache.flush()
    assert cache.parts("fx", key(1)) == parts
    assert cache.parts("fx", key(2)) == []


def test_forked_child_reads_writes_and_leaves_the_queue_to_its_parent(make):
    cache = make()
    cache.put("fx", key("parent"), b"parent")
    cache.flush()
    cache.put("fx", key("queued"), b"queued")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            good = cache.get("fx", key("parent")) == b"parent"
            cache.put("fx", key("child"), b"child")
            good = cache.flush() and good and cache.stats.snapshot().total("stored") == 1
            code = 0 if good else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    cache.flush()
    assert cache.get("fx", key("child")) == b"child"
    assert cache.get("fx", key("queued")) == b"queued"
    assert cache.stats.snapshot().total("stored") == 2


EXIT = """
import multiprocessing, sys
from pathlib import Path
from kcache.cache import Cache
from kcache.config import Settings
from kcache.digest import Key
cache = Cache.open(Settings(dir=Path(sys.argv[1]), strict=True))
def child():
    cache.put("fx", Key(b"c" * 32), b"child")
if __name__ == "__main__":
    cache.put("fx", Key(b"p" * 32), b"parent")
    if sys.argv[2] == "fork":
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_queue_is_drained_at_exit_and_the_run_recorded(make, tmp_path, how):
    script = tmp_path / "program.py"
    script.write_text(EXIT)
    subprocess.run([sys.executable, str(script), str(tmp_path / "s"), how], check=True, timeout=20)
    cache = make()
    assert cache.get("fx", Key(b"p" * 32)) == b"parent"
    assert (cache.get("fx", Key(b"c" * 32)) == b"child") == (how == "fork")
    run = cache.store.runs()[0]
    assert run["program"] == "program.py"
    assert run["layers"] == {"fx": {"stored": 1}}


def test_use_is_noted_for_eviction(make):
    cache = make()
    cache.put("fx", key(1), b"value")
    cache.flush()
    before = next(cache.store.scan()).used_ns
    cache.get("fx", key(1))
    cache.close()
    opened = Store.open(cache.settings.dir)
    assert next(opened.scan()).used_ns > before
    opened.close()


def test_temporary_cache_stands_alone(make, tmp_path):
    cache = make()
    cache.put("fx", key(1), b"value")
    aside = Cache.temporary(tmp_path / "fresh" / "kcache", cache.settings, cache.stats)
    assert aside.get("fx", key(1)) is None
    aside.put("fx", key(2), b"value")
    aside.close()
    assert cache.get("fx", key(2)) is None
    assert cache.store.runs() == []


def test_directory_that_may_not_be_used_raises_on_open(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError):
        Cache.open(Settings(dir=tmp_path / "file"), Stats())


def test_threads_put_and_get_at_once(make):
    cache = make()
    wrong = []

    def work(n: int) -> None:
        for i in range(40):
            cache.put("fx", key((n, i)), b"%d-%d" % (n, i) * 300)
            if cache.get("fx", key((n, i))) != b"%d-%d" % (n, i) * 300:
                wrong.append((n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.flush()
    assert wrong == []
    assert cache.stats.snapshot().layers == {"fx": {"hit": 240, "stored": 240}}


# --- memos ----------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "pkg" / "__pycache__").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("a = 1")
    (root / "b.so").write_text("binary")
    return root


def test_memo_answers_while_the_stamps_are_the_same(make, tree):
    memo = Memo(make())
    memo.put("hash", stamp_tree(tree), b"fact")
    assert memo.get("hash", stamp_tree(tree)) == b"fact"
    assert memo.get("other", stamp_tree(tree)) is None
    (tree / "pkg" / "a.py").write_text("a = 22")
    assert memo.get("hash", stamp_tree(tree)) is None


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda t: None, True),
        (lambda t: (t / "pkg" / "__pycache__" / "a.pyc").write_text("x"), True),
        (lambda t: (t / "pkg" / "a.py").write_text("a = 2"), False),
        (lambda t: os.utime(t / "b.so", ns=(1, 1)), False),
        (lambda t: (t / "c.py").write_text(""), False),
        (lambda t: (t / "b.so").unlink(), False),
        (lambda t: (t / "b.so").rename(t / "d.so"), False),
    ],
    ids=["nothing", "bytecode", "content", "time", "added", "removed", "renamed"],
)
def test_tree_stamp_sees(tree, edit, same):
    before = stamp_tree(tree)
    time.sleep(0.01)  # the kernel's clock for file times ticks every 4 ms
    edit(tree)
    assert (stamp_tree(tree) == before) is same


def test_tree_stamp_of_suffixes(tree):
    before, everything = stamp_tree(tree, (".py",)), stamp_tree(tree)
    (tree / "b.so").unlink()
    assert stamp_tree(tree, (".py",)) == before
    assert stamp_tree(tree) != everything


def test_missing_file_has_a_stamp(tmp_path):
    path = str(tmp_path / "later")
    before = stamp_files([path])
    assert Stamp.of(path).size == -1
    (tmp_path / "later").write_text("")
    assert stamp_files([path]) != before


def test_file_stamps_do_not_depend_on_order(tree):
    assert stamp_files([tree / "b.so", tree / "pkg"]) == stamp_files([tree / "pkg", tree / "b.so"])
