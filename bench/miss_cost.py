"""What explaining a miss adds to a cold compile, and to a hit: `python bench/miss_cost.py --json FILE [--runs 5]`.

Each measurement is a fresh process with every cache directory empty but kcache's store, which holds the entries of the
program before each of `NEAR` edits, so that every miss has as many entries to be compared with as it ever has:

    edited   the program was edited: it compiles, and its misses are explained
    again    the same once more: it hits

The figure is the part of the first step that is spent in explaining, clocked in that step itself, so a busy machine
counts on both sides. Exits 1 if a value is wrong, an edited run leaves a miss unexplained, or a hit explains anything.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from sandbox import Sandbox, versions

NEAR = 8
"""Entries that a row of the store's index of the newest holds (`kcache.recent.KEPT`)."""
EDITS = {
    "small": ("small.py", "+ 0.5", "+ 0.5{:02}"),
    "train": ("quantize.py", "<= 1.0)", "<= 1.0{:02})"),
}
"""By program: the file that is edited, what is replaced, and by what, with a number put in."""


def measured(sandbox: Sandbox, program: str) -> dict[str, Any]:
    """One run in empty cache directories, but for the store."""
    sandbox.forget()
    account, timed = map(json.loads, sandbox.output("explaining.py", f"{program}.py").splitlines()[-2:])
    return {
        "first_s": account["first_s"],
        "right": account["right"],
        "misses": sum(layer.get("miss", 0) for name, layer in account["kcache"]["layers"].items() if name != "host"),
        **timed,
    }


def measure(program: str, runs: int, root: Path) -> dict[str, list[dict[str, Any]]]:
    """Every run of `program`, by case."""
    sandbox, (file, old, new) = Sandbox("kcache", root / program), EDITS[program]
    found: dict[str, list[dict[str, Any]]] = {"edited": [], "again": []}
    for number in range(NEAR + runs):
        sandbox.restore()
        sandbox.edit(file, old, new.format(number + 1))
        run = measured(sandbox, program)
        print(f"{program} edit {number + 1}: {run['first_s']:.2f} s", file=sys.stderr, flush=True)
        if number >= NEAR:
            found["edited"].append(run)
            found["again"].append(measured(sandbox, program))
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of one case."""
    return {
        "first_s": median(run["first_s"] for run in runs),
        "misses": median(run["misses"] for run in runs),
        "explained": median(run["explained"] for run in runs),
        "ms_per_explanation": median(1e3 * run["explained_s"] / max(1, run["explained"]) for run in runs),
        "share_of_first_step": median(run["explained_s"] / run["first_s"] for run in runs),
    }


def faults(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What is wrong, in words."""
    found = [f"{case}: a wrong value" for case, each in runs.items() if not all(run["right"] for run in each)]
    if any(not run["misses"] or run["explained"] != run["misses"] for run in runs["edited"]):
        found.append("edited: not every miss was explained")
    if any(run["misses"] or run["explained"] for run in runs["again"]):
        found.append("again: a hit was explained, or it was none")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What explaining a miss costs.")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--runs", type=int, default=5, help="runs of each case (default: 5)")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", *sys.argv]),
        "versions": versions(),
        "runs": arguments.runs,
        "programs": {},
    }
    wrong = []
    print(f"{'':16}{'first s':>9}{'explained':>11}{'ms each':>9}{'share':>9}")
    for program in EDITS:
        with tempfile.TemporaryDirectory(prefix="kcache-bench-") as folder:
            runs = measure(program, arguments.runs, Path(folder))
        figures = {case: summary(each) for case, each in runs.items()}
        report["programs"][program] = {"figures": figures, "runs": runs}
        wrong += [f"{program}, {fault}" for fault in faults(runs)]
        for case, of in figures.items():
            print(
                f"{program:8}{case:8}{of['first_s']:9.2f}{of['explained']:11g}{of['ms_per_explanation']:9.2f}"
                f"{of['share_of_first_step']:9.2%}",
                flush=True,
            )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    print("\n".join(f"FAILED: {fault}" for fault in wrong) or "No hit was explained, and every miss was.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
