"""Every fault at full numbers: `python -m tests.faults.run [NAME ...] [--jobs N] [--json FILE]`, or `make faults`.

* crowd: 32 processes that read, write and evict for a minute; one of them is killed every 100 ms
* steps: `kill -9` at every call that a write makes to the kernel, and at every tenth line of kcache that it runs through
* power: the power fails at 200 moments of a program that stores; what was not synced is lost in five ways each
* entries: 10,000 changes of single rows
* pages: 1,000 files with a damaged page
* forks: 1,000 beside and 1,000 inside a write transaction, 300 beside threads, a pool of 16
* space: full disks, limits, what cannot be written, and every later call to the kernel failing; with torch too

What each show counts as a fault stands at the top of its module. Exits 1 if there is any. Each runs in a process of its
own, the crowd before all others and alone, since it measures how long things take.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import blake3
import lmdb
import zstandard

import kcache
from tests.faults import host, space
from tests.faults.figures import Figures

MEMORY = Path("/dev/shm")
"""Where shows work that make thousands of copies of a store."""


def crowd(folder: str) -> Figures:
    return host.call("tests.processes.crowd:run_in", folder, 60)


def steps(folder: str) -> Figures:
    return host.call("tests.faults.steps:run", folder, 10, shim=True)


def power(folder: str) -> Figures:
    return host.call("tests.faults.power:run", folder, 150, 200, shim=True)


def entries(folder: str) -> Figures:
    return host.call("tests.faults.mutations:run", folder, 10_000)


def pages(folder: str) -> Figures:
    return host.call("tests.faults.pages:run", folder, 1000)


def forks(folder: str) -> Figures:
    figures = Figures()
    for name, times in (("beside", 1000), ("inside", 1000), ("threads", 300)):
        figures.add(host.call(f"tests.processes.forks:{name}", folder, times))
    figures.add(host.call("tests.processes.forks:pool", folder, 16, 320))
    return figures


def full(folder: str) -> Figures:
    figures = Figures()
    for name in space.CASES:
        shim = name in space.SHIMMED
        figures.add(host.call("tests.faults.space:run", str(Path(folder) / name), name, shim=shim, mounts=True))
        figures.counts["cases"] += 1
    return figures


SHOWS: dict[str, tuple[Callable[[str], Figures], bool]] = {
    # name: the show, and whether it works in memory
    "crowd": (crowd, False),
    "steps": (steps, True),
    "power": (power, True),
    "entries": (entries, True),
    "pages": (pages, True),
    "forks": (forks, False),
    "space": (full, False),
}


def shown(name: str) -> dict[str, Any]:
    """One show in a folder of its own: its figures and how long it took."""
    show, in_memory = SHOWS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if in_memory and os.access(MEMORY, os.W_OK) else None) as folder:
        figures = show(folder)
    day = datetime.date.today().isoformat()
    found = {"date": day, **figures.to_dict(), "seconds": round(time.monotonic() - began, 1)}
    print(f"{name}: {'FAULTS' if found['faults'] else 'no fault'} in {found['seconds']} s", flush=True)
    print(json.dumps(found, indent=1), flush=True)
    return found


def versions() -> dict[str, str]:
    return {
        "kcache": kcache.__version__,
        "python": platform.python_version(),
        "lmdb": ".".join(map(str, lmdb.version())),
        "py-lmdb": lmdb.__version__,
        "zstandard": zstandard.__version__,
        "blake3": blake3.__version__,
        "kernel": platform.release(),
        "cores": str(len(os.sched_getaffinity(0))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHOWS)}; all without one")
    parser.add_argument("--jobs", type=int, default=1, help="how many shows at once, the crowd excepted")
    parser.add_argument("--json", type=Path, help="where to keep the figures; other shows in it stay")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SHOWS):
        parser.error(f"there is no show {sorted(unknown)}")
    if missing := host.no_compiler() or host.no_mounts():
        parser.error(f"not all shows can run here: {missing}")
    names = given.names or list(SHOWS)
    found = {name: shown(name) for name in names if name == "crowd"}
    with ThreadPoolExecutor(given.jobs) as pool:
        others = [name for name in names if name != "crowd"]
        found |= dict(zip(others, pool.map(shown, others), strict=True))
    if given.json:
        kept = json.loads(given.json.read_text())["shows"] if given.names and given.json.exists() else {}
        head = {"command": "python -m tests.faults.run", "versions": versions()}
        given.json.write_text(json.dumps({**head, "shows": {**kept, **found}}, indent=1) + "\n")
    return int(any(one["faults"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
