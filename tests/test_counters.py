"""Counting: per layer, with reasons, from many threads, and not twice over a fork."""

from __future__ import annotations

import json
import os
import threading

import pytest

from kcache.counters import COUNTERS, LAYERS, Stats


def test_counts_reasons_and_saved_time():
    stats = Stats()
    stats.count("fx", "hit", 3)
    stats.count("fx", "miss", reason="absent")
    stats.count("aot", "bypass", reason="opaque name f")
    stats.saved("fx", 1_500_000_000)
    now = stats.snapshot()
    assert now.layers == {"fx": {"hit": 3, "miss": 1}, "aot": {"bypass": 1}}
    assert now.reasons == {("fx", "miss", "absent"): 1, ("aot", "bypass", "opaque name f"): 1}
    assert (now.hits, now.misses, now.bypasses, now.saved_seconds) == (3, 1, 1, 1.5)
    assert json.loads(json.dumps(now.to_dict()))["reasons"][1]["reason"] == "absent"


def test_snapshot_is_detached():
    stats = Stats()
    stats.count("fx", "hit")
    now = stats.snapshot()
    stats.count("fx", "hit")
    assert now.hits == 1


def test_take_hands_each_count_out_once():
    stats = Stats()
    stats.count("fx", "hit", 2)
    assert stats.take().layers == {"fx": {"hit": 2}}
    stats.count("fx", "hit")
    stats.count("aot", "miss")
    assert stats.take().layers == {"fx": {"hit": 1}, "aot": {"miss": 1}}
    assert stats.take().layers == {}
    assert stats.snapshot().hits == 3


def test_unknown_outcome_is_refused():
    with pytest.raises(ValueError, match="guess"):
        Stats().count("fx", "guess")


def test_threads_lose_nothing():
    stats = Stats()
    threads = [threading.Thread(target=lambda: [stats.count("fx", "hit") for _ in range(2000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.snapshot().hits == 16_000


def test_forked_child_starts_at_zero():
    stats = Stats()
    stats.count("fx", "hit", 5)
    pid = os.fork()
    if pid == 0:
        stats.count("fx", "hit")
        os._exit(stats.snapshot().hits)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert stats.snapshot().hits == 5


def test_report():
    stats = Stats()
    stats.count("fx", "hit", 3)
    stats.count("fx", "miss", reason="absent")
    stats.count("fx", "bypass", reason="opaque name f")
    stats.saved("fx", 90_000_000_000)
    assert str(stats.snapshot()).splitlines() == [
        "Cacheable lookups:                 4 / 5      (80.0 %)",
        "  Hits:                            3 / 4      (75.0 %)",
        "    fx:                            3 / 4      (75.0 %)",
        "  Misses:                          1 / 4      (25.0 %)",
        "Bypassed:                          1 / 5      (20.0 %)",
        "Time saved:               1 min 30 s",
        "Reasons:",
        "  fx, bypass:                      1   opaque name f",
        "  fx, miss:                        1   absent",
    ]
    assert str(Stats().snapshot()).splitlines()[0] == "Cacheable lookups:                 0 / 0"


def test_tables_name_each_thing_once():
    assert len({layer.id for layer in LAYERS}) == len(LAYERS) == 9
    assert len({counter.id for counter in COUNTERS}) == len(COUNTERS)
