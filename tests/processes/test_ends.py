"""How a process may end with entries in its queue, and which of them are stored then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kcache.store import Store
from tests.faults import entries

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from tests.faults import entries

root, how = Path(sys.argv[1]), sys.argv[2]
began, said = time.monotonic(), False
cache = Cache.open(Settings(dir=root, max_size=1 << 26), Stats())

def put(numbers):
    for n in numbers:
        one = entries.draft(n)
        cache.put(one.layer, one.key, one.value, label=one.label, parts=one.parts, pieces=one.pieces)

if how == "forked":
    put(range(2))
    cache.flush()
    if not os.fork():
        put(range(2, 8))
        time.sleep(3)
        os._exit(0)
    os.wait()
else:
    put(range(8))
if how in ("SIGTERM", "SIGINT"):
    time.sleep(3)
    print("ready", flush=True)
    signal.pause()
elif how == "busy":
    for n in range(8, 10**6):
        put([n])
        time.sleep(0.02)
        if time.monotonic() > began + 2 and not said:
            said = print("until", n, flush=True) is None
elif how == "exit":
    sys.exit(0)
elif how == "error":
    raise KeyError("of the program")
elif how == "thread":
    def late():
        time.sleep(0.1)
        put(range(8, 10))
    threading.Thread(target=late).start()
"""


@pytest.mark.parametrize(
    "how, code, stored",
    [
        ("SIGTERM", -signal.SIGTERM, 8), ("SIGINT", -signal.SIGINT, 8), ("exit", 0, 8), ("error", 1, 8),
        ("thread", 0, 10), ("forked", 0, 8),
    ],
)  # fmt: skip
def test_what_was_put_a_moment_before_the_end_is_stored(tmp_path, how, code, stored):
    """By a signal: what came before a pause. By an end of the interpreter, with an error or without: all."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "s", how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if how.startswith("SIG"):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[how])
    process.communicate(timeout=60)
    assert process.returncode == code
    assert entries.audit(tmp_path / "s") == []
    store = Store.open(tmp_path / "s", create=False)
    assert {int(item.record.label) for item in store.scan()} == set(range(stored))
    store.close()


def test_process_that_never_pauses_loses_about_a_second(tmp_path):
    """Puts every 20 ms: a batch is written when its first entry is a second old, whatever comes after."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path / "s", "busy"], stdout=subprocess.PIPE)
    last = int(process.stdout.readline().split()[1])
    process.kill()
    process.communicate()
    store = Store.open(tmp_path / "s", create=False)
    stored = {int(item.record.label) for item in store.scan()}
    store.close()
    assert set(range(last // 4)) <= stored


def test_end_in_the_middle_of_a_write_keeps_what_was_committed(tmp_path):
    """Many small writes, and the interpreter ends whenever it likes: what is there is whole."""
    code = PROGRAM.partition("if how ==")[0] + "put(range(4000)); time.sleep(float(how)); os._exit(0)"
    for delay in (0.06, 0.1, 0.2):
        root = tmp_path / str(delay)
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", code, root, str(delay)], check=True)
        assert time.monotonic() - began < 30
        assert entries.audit(root) == []
    assert os.listdir(tmp_path / "0.2") == ["v1"]
