"""The command line: what it prints where, its exit status, and what it must not import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from kcache.counters import COUNTERS
from kcache.digest import Digest, Key, Part
from kcache.draft import Draft
from kcache.store import Store

main = pytest.importorskip("kcache_cli.main", reason="kcache is not installed (pip install -e .)")


def key(name: str) -> Key:
    return Key.of([Part.of("name", name)])


NOW = time.time_ns()
DAY = 86400 * 10**9


@pytest.fixture
def filled(tmp_path, monkeypatch):
    """A store with an aot entry that names an fx entry, two lone ones, and two runs."""
    monkeypatch.setenv("KCACHE_DIR", str(tmp_path / "s"))
    opened = Store.open(tmp_path / "s")
    opened.write(
        [
            Draft("aot", key("graph"), b"a" * 2048, links=[("fx", key("code"))], created_ns=NOW),
            Draft("fx", key("code"), b"b" * 1024, label="add_kernel mul_kernel", created_ns=NOW),
            Draft("fx", key("lone"), b"c" * 1024, label="add_kernel_2", created_ns=NOW - 10 * DAY),
            Draft("triton", key("bin"), b"d" * 4096, label="sub_kernel", created_ns=NOW),
        ]
    )
    run = {"program": "train.py", "pid": 1, "ended_ns": NOW, "saved_ns": {"fx": 90 * 10**9}, "saved_seconds": 90.0}
    opened.add_run({**run, "layers": {"fx": {"hit": 3, "miss": 1}, "aot": {"bypass": 1}}}, now_ns=NOW)
    opened.close()
    return tmp_path / "s"


def call(*args: str, **more):
    return CliRunner().invoke(main.cli, args, **more)


def left(root) -> int:
    opened = Store.open(root)
    try:
        return opened.count()
    finally:
        opened.close()


def test_stats_for_people(filled):
    result = call("stats")
    assert result.exit_code == 0
    assert result.stderr == ""
    out = result.stdout.splitlines()
    assert out[0] == "Cacheable lookups:                 4 / 5      (80.0 %)"
    assert "    fx:                            3 / 4      (75.0 %)" in out
    assert "Time saved:               1 min 30 s" in out
    assert f"Store:                  {filled / 'v1'} (environment)" in out
    assert "  Entries:                         4" in out
    assert "    aot:                           1   2 KiB" in out
    assert "    fx:                            2   2 KiB" in out
    assert " ".join(out[-1].split()[2:]) == "train.py 3 hits 1 misses 1 bypassed saved 1 min 30 s"


def test_stats_as_json(filled):
    facts = json.loads(call("stats", "--json").stdout)
    assert facts["layers"]["triton"] == {"entries": 1, "bytes": 4096, "damaged": 0}
    assert facts["counters"] == {"fx": {"hit": 3, "miss": 1, "saved_ns": 90 * 10**9}, "aot": {"bypass": 1}}
    assert facts["runs"][0]["program"] == "train.py"
    assert facts["max_size"] == 10 << 30


def test_stats_of_a_damaged_record(filled):
    opened = Store.open(filled)
    row = next(opened.scan("triton")).id
    opened.swap("index", row, opened.fetch("index", row), b"KCR1 nonsense")
    opened.close()
    assert "    triton:                        1   0 B, 1 damaged" in call("stats").stdout.splitlines()
    assert call("purge", "--yes").stdout == "Removed 4 entries (4 KiB).\n"


@pytest.mark.parametrize("command", [("stats",), ("purge", "--yes"), ("gc",), ("compact",), ("verify",)])
def test_missing_and_foreign_stores(tmp_path, command):
    result = call(*command, "--dir", str(tmp_path / "none"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"kcache: there is no kcache store in {tmp_path / 'none'}.\n"
    assert not (tmp_path / "none").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    result = call(*command, "--dir", str(tmp_path / "home"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds other files (thesis.txt)" in result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "home" / "thesis.txt").read_text() == "mine"


def test_setting_that_cannot_be_used(filled, monkeypatch):
    monkeypatch.setenv("KCACHE_MAX_SIZE", "much")
    result = call("stats")
    assert result.exit_code == 2
    assert result.stderr.startswith("kcache: max_size = 'much', from KCACHE_MAX_SIZE in the environment")


@pytest.mark.parametrize(
    ("options", "removed", "size", "rest"),
    [
        ((), 4, "8 KiB", 0),
        (("--layer", "triton"), 1, "4 KiB", 3),
        (("--layer", "aot"), 2, "3 KiB", 2),
        (("--older-than", "7d"), 1, "1 KiB", 3),
        (("--kernel", "add_kernel"), 2, "3 KiB", 2),
        (("--kernel", "add_kernel_2"), 1, "1 KiB", 3),
        (("--kernel", "add"), 0, "0 B", 4),
        (("--layer", "fx", "--older-than", "7d"), 1, "1 KiB", 3),
    ],
    ids=["all", "layer", "linked", "age", "kernel", "kernel-2", "no-kernel", "both"],
)
def test_purge(filled, options, removed, size, rest):
    what = f"{removed} {'entry' if removed == 1 else 'entries'} ({size})"
    dry = call("purge", "--dry-run", *options)
    assert (dry.exit_code, dry.stdout, left(filled)) == (0, f"Would remove {what}.\n", 4)
    done = call("purge", "--yes", *options)
    assert (done.exit_code, done.stdout, left(filled)) == (0, f"Removed {what}.\n", rest)


def test_purge_frees_blobs(filled):
    assert call("purge", "--yes", "--layer", "triton").exit_code == 0
    opened = Store.open(filled)
    assert opened.fetch("refs", Digest.of(b"d" * 4096).raw) is None
    opened.close()


def test_purge_without_a_terminal_refuses(filled):
    result = call("purge")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Add --yes" in result.stderr
    assert left(filled) == 4


@pytest.mark.parametrize(("answer", "status", "rest"), [("y\n", 0, 0), ("n\n", 1, 4)])
def test_purge_asks_at_a_terminal(filled, answer, status, rest):
    controller, terminal = os.openpty()
    os.write(controller, answer.encode())
    command = [sys.executable, "-m", "kcache_cli.main", "purge"]
    done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, timeout=20)
    os.close(controller)
    os.close(terminal)
    assert done.returncode == status
    assert "Remove 4 entries (8 KiB) from" in done.stderr
    assert done.stdout == ("Removed 4 entries (8 KiB).\n" if rest == 0 else "")
    assert left(filled) == rest


@pytest.mark.parametrize("options", [("--layer", "gpu"), ("--older-than", "soon")])
def test_purge_with_an_option_that_makes_no_sense(filled, options):
    result = call("purge", "--yes", *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert left(filled) == 4


def test_every_command_has_help():
    listed = call("--help").stdout
    for name, (_, text) in main.COMMANDS.items():
        assert f"{name}  {text}" in " ".join(listed.split()).replace(f"{name} {text}", f"{name}  {text}")
        result = call(name, "--help")
        assert result.exit_code == 0
        assert text.rstrip(".").split(":")[0].split(",")[0] in result.stdout


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["stats"], ["purge", "--help"]])
def test_what_is_imported(filled, args):
    code = (
        "import sys; from kcache_cli.main import cli; cli(sys.argv[1:], standalone_mode=False);"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not loaded & {"torch", "triton", "numpy", "kcache.hooks"}
    assert ("lmdb" in loaded) == (args == ["stats"])


def test_version_and_help_are_quick():
    """Imports of kcache and click alone, so that a slow disk or a busy machine does not count."""
    code = "import time; t = time.perf_counter(); import kcache_cli.main; print(time.perf_counter() - t)"
    best = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))
    assert best < 0.1


def test_reader_that_went_away_is_quiet(filled):
    command = f"'{sys.executable}' -m kcache_cli.main stats --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20)
    assert done.stderr == ""


def test_gc_evicts_down_to_a_size_and_says_so(filled):
    dry = call("gc", "--max-size", "1", "--dry-run")
    assert dry.exit_code == 0
    assert dry.stdout.startswith("Would evict")
    assert left(filled) == 4
    done = call("gc", "--max-size", "1")
    assert done.stdout.startswith("Evicted 4 entries (")
    assert left(filled) == 0
    assert call("gc", "--max-size", "much").exit_code == 2


def test_reasons_are_summed_over_runs(filled):
    opened = Store.open(filled)
    reason = {"layer": "fx", "outcome": "error", "reason": "write: disk-full", "count": 2}
    for moment in (NOW + 1, NOW + 2):
        opened.add_run({"layers": {"fx": {"error": 2}}, "reasons": [reason]}, now_ns=moment)
    opened.close()
    assert json.loads(call("stats", "--json").stdout)["reasons"] == [reason | {"count": 4}]
    assert "  fx, error:                       4   write: disk-full" in call("stats").stdout.splitlines()


def test_compact_says_what_it_freed(filled):
    opened = Store.open(filled)
    opened.write([Draft("cpp", key("large"), os.urandom(3 << 20))])
    opened.delete([item.id for item in opened.scan("cpp")])
    opened.close()
    result = call("compact")
    assert result.exit_code == 0
    assert re.fullmatch(r"The file takes \d+ KiB on disk; it took 3\.\d MiB\.\n", result.stdout)
    assert left(filled) == 4
    opened = Store.open(filled)
    refused = call("compact")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("kcache: ") and "is open in this process" in refused.stderr
    opened.close()


def test_gc_keeps_what_was_used_last_below_the_size(tmp_path, monkeypatch):
    monkeypatch.setenv("KCACHE_DIR", str(tmp_path / "s"))
    opened = Store.open(tmp_path / "s")
    opened.write([Draft("fx", key(str(n)), os.urandom(100_000), created_ns=NOW + n) for n in range(20)])
    opened.write([Draft("aot", key("names the first"), b"a", links=[("fx", key("0"))], created_ns=NOW + 99)])
    opened.close()
    assert call("gc").stdout == "Evicted 0 entries (0 B).\n"
    assert call("gc", "--max-size", "1MB", "--dry-run").stdout == "Would evict 1 MiB of 2 MiB in use.\n"
    assert left(tmp_path / "s") == 21
    assert call("gc", "--max-size", "1MB").exit_code == 0
    opened = Store.open(tmp_path / "s")
    kept = {(item.layer, item.key) for item in opened.scan()}
    assert opened.live_bytes() <= 10**6
    assert {("fx", key("19")), ("fx", key("0")), ("aot", key("names the first"))} <= kept
    assert not {("fx", key("1")), ("fx", key("2"))} & kept
    assert len(kept) >= 8
    opened.close()


def test_a_reason_of_every_outcome_is_shown_and_counted(filled):
    reasons = [
        {"layer": "fx", "outcome": counter.id, "reason": f"why {counter.id}", "count": 3 + number}
        for number, counter in enumerate(COUNTERS)
        if counter.id != "hit"
    ]
    opened = Store.open(filled)
    opened.add_run({"layers": {"fx": {r["outcome"]: r["count"] for r in reasons}}, "reasons": reasons}, now_ns=NOW + 1)
    opened.close()
    lines = call("stats").stdout.splitlines()
    for item in reasons:
        assert f"  {'fx, ' + item['outcome'] + ':':<22}{item['count']:>12}   {item['reason']}" in lines
    for counter in COUNTERS:
        if counter.id not in ("hit", "miss"):
            assert [line for line in lines if line.startswith(f"{counter.text}:")], counter.text
    assert json.loads(call("stats", "--json").stdout)["reasons"] == sorted(reasons, key=lambda item: item["outcome"])
