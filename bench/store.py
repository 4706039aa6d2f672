"""What the store costs: `python bench/store.py --json FILE [--runs 5]`, beside diskcache, zict's LMDB and plain files.

Each side fills a directory in one process and reads it in another; the sides take turns. Entries
are what a compile leaves behind: Python text and machine code, cut from the installed torch.

    small    entries of 4 KiB: the median and 95th percentile of one get, in microseconds
    large    entries of 10 MiB: gigabytes of content a second when read, and the time of a put
             until it is on the disk, both also as multiples of decompressing and compressing alone
    growth   the median get of a 4 KiB entry among 100,000, as a multiple of that among 1,000

kcache compresses, verifies every byte that it returns, and syncs each batch. diskcache syncs
now and then; zict and plain files never do; none of them compresses or verifies. Files are in
the page cache. A figure is the best of the runs, since the machine may be busy with others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sandbox import versions

KIB, MIB = 1 << 10, 1 << 20
SMALL, LARGE = 4 * KIB, 10 * MIB
SMALL_COUNT, LARGE_COUNT, LOOKUPS = 2000, 8, 4000
FEW, MANY = 1000, 100_000
SIDES = ("kcache", "diskcache", "zict LMDB", "plain files")
GOALS = {"small get, us": 20.0, "large get, GB/s": 0.8, "large put, times compressing": 1.5, "growth, times": 1.5}


def contents(size: int, count: int) -> Iterator[bytes]:
    """`count` different values of `size` bytes, each half Python text and half machine code."""
    torch = Path(importlib.util.find_spec("torch").origin).parent  # type: ignore[union-attr,arg-type]
    text = b"".join(path.read_bytes() for path in sorted(torch.glob("_inductor/**/*.py")))
    code = (torch / "lib" / "libtorch_python.so").read_bytes()
    text *= 1 + 2 * size // len(text)
    half, chooser = size // 2, random.Random(0)
    for number in range(count):
        cut = [
            whole[start : start + half] for whole in (text, code) for start in [chooser.randrange(len(whole) - half)]
        ]
        yield number.to_bytes(8, "big") + b"".join(cut)[8:]


def kcache_side(folder: Path) -> tuple[Callable[[int, bytes], Any], Callable[[int], Any], Callable[[], Any]]:
    """Put, get and flush of a cache as the seams use it."""
    from kcache.cache import Cache
    from kcache.config import Settings
    from kcache.counters import Stats
    from kcache.digest import Key, Part

    cache = Cache.temporary(folder, Settings.load(dir=folder), Stats())
    keys = [Key.of([Part.of("number", str(number))]) for number in range(MANY)]
    return lambda n, value: cache.put("fx", keys[n], value), lambda n: cache.get("fx", keys[n]), cache.flush


def side_of(name: str, folder: Path) -> tuple[Callable[[int, bytes], Any], Callable[[int], Any], Callable[[], Any]]:
    """Put, get and flush of one side."""
    names = [f"{number:064x}" for number in range(MANY)]
    if name == "kcache":
        return kcache_side(folder)
    if name == "diskcache":
        import diskcache

        kept = diskcache.Cache(folder, size_limit=10 << 30)
        return lambda n, value: kept.set(names[n], value), lambda n: kept.get(names[n]), lambda: None
    if name == "zict LMDB":
        import zict

        table = zict.LMDB(str(folder))
        return lambda n, value: table.update({names[n]: value}), lambda n: table[names[n]], lambda: None

    def put(n: int, value: bytes) -> None:
        (folder / "new").write_bytes(value)
        (folder / "new").rename(folder / names[n])

    folder.mkdir(exist_ok=True)
    return put, lambda n: (folder / names[n]).read_bytes(), lambda: None


def timed(action: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def fill(name: str, folder: Path) -> dict[str, Any]:
    """Fill both directories of a side; seconds of a large put and of compressing its value."""
    import zstandard

    from kcache.entry import ZSTD_LEVEL

    put, _, flush = side_of(name, folder / "small")
    for number, value in enumerate(contents(SMALL, SMALL_COUNT)):
        put(number, value)
    flush()
    put, _, flush = side_of(name, folder / "large")
    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    times, alone = [], []
    for number, value in enumerate(contents(LARGE, LARGE_COUNT)):
        alone.append(timed(packer.compress, value))
        times.append(timed(lambda n, v: (put(n, v), flush()), number, value))
    return {"put_s": median(times), "compressing_s": median(alone)}


def read(name: str, folder: Path) -> dict[str, Any]:
    """Seconds of a small and of a large get, after each value was compared once, and of decompressing alone."""
    import zstandard

    from kcache.entry import ZSTD_LEVEL

    _, get, _ = side_of(name, folder / "small")
    for number, value in enumerate(contents(SMALL, SMALL_COUNT)):
        assert get(number) == value
    order = random.Random(1).choices(range(SMALL_COUNT), k=LOOKUPS)
    small = [timed(get, number) for number in order]
    _, get, _ = side_of(name, folder / "large")
    for number, value in enumerate(contents(LARGE, LARGE_COUNT)):
        assert get(number) == value
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(value)
    unpacker, large, alone = zstandard.ZstdDecompressor(), [], []
    for number in list(range(LARGE_COUNT)) * 4:
        large.append(timed(get, number))
        alone.append(timed(unpacker.decompress, packed))
    times = {"large_s": median(large), "decompressing_s": median(alone)}
    return {"small_s": median(small), "small_p95_s": quantiles(small, n=20)[-1], **times}


def growth(name: str, folder: Path) -> dict[str, Any]:
    """Seconds of a small get among few entries and among many."""
    put, get, flush = side_of(name, folder)
    found = {}
    start = 0
    for count in (FEW, MANY):
        for number, value in enumerate(contents(SMALL, count)):
            if number >= start:
                put(number, value)
                if number % FEW == 0:
                    flush()
        flush()
        order = random.Random(1).choices(range(count), k=LOOKUPS)
        for number in order:
            get(number)
        found[str(count)] = median(timed(get, number) for number in order)
        start = count  # of a run of values that begins alike, the rest
    return found


STEPS = {"fill": fill, "read": read, "growth": growth}


def child(step: str, name: str, folder: Path) -> dict[str, Any]:
    """Run one step of one side in a fresh process."""
    command = [sys.executable, __file__, "--child", step, name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}, {step}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def measure(runs: int) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """The figures of every side, and what each process measured."""
    raw: list[dict[str, Any]] = []
    for run in range(runs):
        for name in SIDES:
            with tempfile.TemporaryDirectory() as folder:
                facts = child("fill", name, Path(folder)) | child("read", name, Path(folder))
                raw.append({"run": run, "side": name, **facts})
        with tempfile.TemporaryDirectory() as folder:
            raw.append({"run": run, "side": "kcache", "growth_s": child("growth", "kcache", Path(folder))})
    return {name: figures([one for one in raw if one["side"] == name]) for name in SIDES}, raw


def figures(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The best of `runs`, in the units that are printed."""
    plain = [run for run in runs if "small_s" in run]
    found = {
        "small get, us": min(run["small_s"] for run in plain) * 1e6,
        "small get p95, us": min(run["small_p95_s"] for run in plain) * 1e6,
        "large get, GB/s": LARGE / min(run["large_s"] for run in plain) / 1e9,
        "large get, times decompressing": min(run["large_s"] / run["decompressing_s"] for run in plain),
        "large put, ms": min(run["put_s"] for run in plain) * 1e3,
        "large put, times compressing": min(run["put_s"] / run["compressing_s"] for run in plain),
    }
    grown = [run["growth_s"] for run in runs if "growth_s" in run]
    if grown:
        found["growth, times"] = min(run[str(MANY)] / run[str(FEW)] for run in grown)
    return {name: round(value, 2) for name, value in found.items()}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.child:
        step, name, folder = given.child
        print(json.dumps(STEPS[step](name, Path(folder))))
        return 0
    load = os.getloadavg()[0]  # of others: figures in microseconds mean little on a busy machine
    sides, raw = measure(given.runs)
    print(f"{'':30}" + "".join(f"{name:>14}" for name in SIDES) + f"{'goal':>10}")
    for name in sides["kcache"]:
        numbers = "".join(f"{sides[side].get(name, ''):>14}" for side in SIDES)
        print(f"{name:30}{numbers}{GOALS.get(name, ''):>10}")
    if given.json:
        command = f"python bench/store.py --runs {given.runs}"
        result = {"command": command, "versions": versions(), "load": load, "goals": GOALS, "sides": sides, "runs": raw}
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
