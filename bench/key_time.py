"""What a key of one kernel costs: `python bench/key_time.py --json FILE [--runs 5] [liger_kernel fla]`.

Every Triton kernel of the packages that `make corpus` installs is asked for its key, one after another, on a machine
that need not have a GPU. Each run of each of these is a fresh process; they take turns:

    kcache, never seen    `kcache.fingerprint` with an empty store
    kcache, new process   the same with the store that the process before left: texts are not analysed again
    torch                 what Inductor's cache key takes of a kernel: the text of its closure
    triton                `JITFunction.cache_key`
    linker                the linked text of a kernel whose fingerprint was just asked for

`again` is the median of five further calls in the same process. A kernel whose helpers another kernel has brought in
already is that much cheaper, on every side. Figures are milliseconds per kernel: the least over the runs, since the
machine may be busy with other things, then median and 95th percentile over the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sandbox import versions

ROOT = Path(__file__).parents[1]
SIDES = ("kcache, never seen", "kcache, new process", "torch", "triton", "linker")
AGAIN = 5


def asker(side: str) -> Callable[[Any], Any]:
    """The function that is timed, of a kernel with its launchers."""
    from kcache.launcher import bottom

    if side == "torch":
        from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code as text

        return lambda kernel: text(bottom(kernel))
    if side == "triton":
        return lambda kernel: bottom(kernel).cache_key
    import kcache

    if side == "linker":
        from kcache.link import link

        return link
    kcache.enable()
    return kcache.fingerprint


def child(side: str, packages: list[str]) -> None:
    """Time one side in this process; prints `[first, again]` by kernel."""
    sys.path.insert(0, str(ROOT))
    import kcache
    from tests.corpus.machine import install
    from tests.corpus.program import load
    from tests.corpus.run import located

    install()
    kernels = {}
    for package in packages:
        kernels |= load(located(package), package)[0]
    ask = asker(side)
    times = {}
    for name, (described, kernel) in kernels.items():
        if described.language != "Triton":
            continue
        if side == "linker":
            kcache.fingerprint(kernel)
        taken = []
        for _ in range(1 + AGAIN):
            start = time.perf_counter_ns()
            ask(kernel)
            taken.append((time.perf_counter_ns() - start) / 1e6)
        times[name] = [taken[0], median(taken[1:])]
    print(json.dumps(times))


def measure(packages: list[str], runs: int) -> dict[str, list[dict[str, list[float]]]]:
    """Times of every run of every side."""
    found: dict[str, list[dict[str, list[float]]]] = {side: [] for side in SIDES}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "KCACHE_DIR": f"{folder}/kcache"}
            environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
            for side in SIDES:
                command = [sys.executable, "-W", "ignore", __file__, "--child", side, *packages]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{side}: {done.stderr[-2000:]}")
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def summary(runs: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Median and 95th percentile over the kernels of one side."""
    kernels = runs[0].keys()
    figures: dict[str, Any] = {"kernels": len(kernels)}
    for at, word in enumerate(("first", "again")):
        times = [min(run[kernel][at] for run in runs) for kernel in kernels]
        figures[word] = {"median_ms": round(median(times), 4), "p95_ms": round(quantiles(times, n=20)[-1], 4)}
    return figures


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("packages", nargs="*", default=["liger_kernel", "fla"])
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.child:
        child(given.child, given.packages)
        return 0
    figures = {side: summary(runs) for side, runs in measure(given.packages, given.runs).items()}
    print(f"{'milliseconds per kernel':24} {'first':>8} {'p95':>8} {'again':>8} {'p95':>8}")
    for side, figure in figures.items():
        numbers = [figure[word][of] for word in ("first", "again") for of in ("median_ms", "p95_ms")]
        print(f"{side:24} " + " ".join(f"{number:8.3f}" for number in numbers))
    if given.json:
        command = "python bench/key_time.py " + " ".join([*given.packages, "--runs", str(given.runs)])
        result = {"command": command, "versions": versions(), "sides": figures}
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
