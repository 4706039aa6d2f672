"""How fast a warm start is, stock against kcache in one run: `python bench/cache_hits.py --json FILE [--runs 5]`.

Each measurement is a fresh process; the sides take turns, so that a machine that slows down slows both. Cases:

    stock   cold      nothing anywhere
    stock   deleted   after all of its cache directories were deleted, which is what a new container has
    stock   warm      its cache directories intact
    kcache  cold      nothing anywhere
    kcache  warm      its store only: every other cache directory deleted before each run

Cold and deleted runs are long and vary little, so there are half as many of them. Measured are the seconds of the first
step (torch's and the compiler's imports not counted, `kcache.enable()` counted), the seconds of the whole process, what
the layers counted, and the files and bytes kept for the warm start.

Exits 1 if a warm kcache run misses, is bypassed or computes a wrong value; never because of a time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from sandbox import SIDES, Outcome, Sandbox, gpu_name, versions

CASES = (("stock", "cold"), ("stock", "deleted"), ("stock", "warm"), ("kcache", "cold"), ("kcache", "warm"))
PROGRAMS = {
    "small": "forward of a small graph",
    "train": "forward and backward through a user's operator",
    "kernels": "a user's Triton kernel between two matmuls",
}
ON_GPU = ("kernels",)
MARKS = ("<!-- figures -->", "<!-- /figures -->")

Measured = tuple[str, str, Outcome, tuple[int, int]]
"""Side, case, what the process reported, and files and bytes on disk after it."""


def cold_runs(runs: int) -> int:
    """How many of `runs` turns begin with a cold start of each side."""
    return max(1, runs // 2)


def measure(program: str, runs: int, root: Path) -> Iterator[Measured]:
    """Yield every measurement of `program`, the sides taking turns."""
    file = f"{program}.py"
    sides = {side: Sandbox(side, root / program) for side in SIDES}
    stock, kcache = sides["stock"], sides["kcache"]
    for turn in range(runs):
        if turn < cold_runs(runs):
            for side, sandbox in sides.items():
                sandbox.forget(store=True)
                yield side, "cold", sandbox.run(file), sandbox.disk()
            stock.forget()
            yield "stock", "deleted", stock.run(file), stock.disk()
        yield "stock", "warm", stock.run(file), stock.disk()
        kcache.forget()
        yield "kcache", "warm", kcache.run(file), kcache.disk()


def summarize(measured: list[Measured]) -> dict[str, Any]:
    """One program's figures: by side and case, and the ratios that the goals are about."""
    cases: dict[str, dict[str, Any]] = {side: {} for side in SIDES}
    for side, case in CASES:
        outcomes = [(outcome, disk) for s, c, outcome, disk in measured if (s, c) == (side, case)]
        first, process = [o.first_s for o, _ in outcomes], [o.process_s for o, _ in outcomes]
        last, (files, size) = outcomes[-1]
        cases[side][case] = {
            "first_s": {"median": median(first), "runs": first},
            "process_s": {"median": median(process), "runs": process},
            "right": all(outcome.right for outcome, _ in outcomes),
            "counters": last.counters,
            "kcache": last.kcache,
            "files": files,
            "bytes": size,
        }

    def ratio(mine: str, others: str, *field: str) -> float:
        values = []
        for side, case in (("kcache", mine), ("stock", others)):
            value = cases[side][case]
            for name in field:
                value = value[name]
            values.append(value)
        return values[0] / values[1]

    ratios = {
        "warm kcache / warm stock": ratio("warm", "warm", "first_s", "median"),
        "warm kcache / warm stock, whole process": ratio("warm", "warm", "process_s", "median"),
        "cold kcache / cold stock": ratio("cold", "cold", "first_s", "median"),
        "bytes": ratio("warm", "warm", "bytes"),
    }
    return {"cases": cases, "ratios": ratios}


def faults(program: str, measured: list[Measured]) -> Iterator[str]:
    """What kcache got wrong, in words."""
    for side, case, outcome, _ in measured:
        if side == "kcache" and not outcome.right:
            yield f"{program}, {case}: kcache gave a wrong value"
        if (side, case) == ("kcache", "warm") and not outcome.full_hit:
            yield f"{program}, {case}: kcache did not hit ({outcome.blame()})"


def table(program: str, summary: dict[str, Any]) -> str:
    """One program's figures for a terminal."""
    lines = [f"{program}: {PROGRAMS[program]}", ""]
    lines.append(f"{'':18}{'first s':>9}{'process s':>11}{'files':>7}{'MB':>8}   hits")
    for side, case in CASES:
        of = summary["cases"][side][case]
        lines.append(
            f"{side:8}{case:10}{of['first_s']['median']:9.2f}{of['process_s']['median']:11.2f}"
            f"{of['files']:7}{of['bytes'] / 1e6:8.2f}   {_hits(of)}".rstrip()
        )
    lines += ["", *(f"{name}: {value:.3f}" for name, value in summary["ratios"].items()), ""]
    return "\n".join(lines)


def _hits(case: dict[str, Any]) -> str:
    layers = case["kcache"]["layers"] if case["kcache"] else case["counters"]
    return ", ".join(f"{layer} {count['hit']}" for layer, count in layers.items() if count.get("hit"))


def figures(report: dict[str, Any]) -> str:
    """The report as README.md shows it."""
    about = report["versions"]
    lines = ["| seconds of the first step | " + " | ".join(PROGRAMS[name] for name in report["programs"]) + " |"]
    lines.append("|---|" + "---|" * len(report["programs"]))
    for text, side, case in (
        ("cold", "stock", "cold"),
        ("stock, warm, its directories intact", "stock", "warm"),
        ("stock, warm, its directories deleted", "stock", "deleted"),
        ("**kcache, warm, every other directory deleted**", "kcache", "warm"),
    ):
        seconds = (of["cases"][side][case]["first_s"]["median"] for of in report["programs"].values())
        lines.append(f"| {text} | " + " | ".join(f"{value:.2f}" for value in seconds) + " |")
    for text, side in (("files (MB) that stock needs for it", "stock"), ("files (MB) that kcache needs", "kcache")):
        cases = [of["cases"][side]["warm"] for of in report["programs"].values()]
        lines.append(f"| {text} | " + " | ".join(f"{c['files']} ({c['bytes'] / 1e6:.2f})" for c in cases) + " |")
    lines += [
        "",
        f"Medians of {report['runs']} warm and {cold_runs(report['runs'])} cold runs in fresh processes, imports not "
        "counted. Machine:",
        f"{about.get('gpu', about['cpu'])}, cores: {about['cores']}; torch {about['torch']}, Triton {about['triton']}, "
        f"Python {about['python']}; {report['date'][:10]}.",
        "Made by `bench/cache_hits.py`; every run is in `bench/results/cache_hits.json`.",
    ]
    return "\n".join(lines)


def fill(readme: Path, report: dict[str, Any]) -> None:
    """Put the figures between the two marks in `readme`; everything else stays."""
    text = readme.read_text()
    before, rest = text.split(MARKS[0], 1)
    after = rest.split(MARKS[1], 1)[1]
    readme.write_text(f"{before}{MARKS[0]}\n{figures(report)}\n{MARKS[1]}{after}")


def run(programs: list[str], runs: int) -> tuple[dict[str, Any], list[str]]:
    """Measure `programs`, print a table of each, and return the report and what kcache got wrong."""
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", *sys.argv]),
        "versions": versions(),
        "runs": runs,
        "programs": {},
    }
    wrong: list[str] = []
    for program in programs:
        with tempfile.TemporaryDirectory(prefix="kcache-bench-") as folder:
            measured = []
            for item in measure(program, runs, Path(folder)):
                side, case, outcome, _ = item
                print(f"{program} {side} {case}: {outcome.first_s:.2f} s", file=sys.stderr, flush=True)
                measured.append(item)
        report["programs"][program] = summarize(measured)
        wrong += faults(program, measured)
        print(table(program, report["programs"][program]), flush=True)
    return report, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Warm starts, stock against kcache.")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures go")
    parser.add_argument("--runs", type=int, default=5, help="warm runs of each side (default: 5)")
    parser.add_argument("--programs", help=f"some of {','.join(PROGRAMS)} (default: all that fit)")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="also put the figures into FILE, between its marks")
    parser.add_argument("--reuse", action="store_true", help="measure nothing: take the figures that --json holds")
    arguments = parser.parse_args()
    fitting = [name for name in PROGRAMS if name not in ON_GPU or (not arguments.programs and gpu_name())]
    programs = arguments.programs.split(",") if arguments.programs else fitting
    if unknown := set(programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if arguments.runs < 1:
        parser.error("--runs: at least 1")

    wrong: list[str] = []
    if arguments.reuse:
        report = json.loads(arguments.json.read_text())
    else:
        report, wrong = run(programs, arguments.runs)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if arguments.readme:
        fill(arguments.readme, report)
    print("\n".join(f"FAILED: {fault}" for fault in wrong) or "Each warm kcache run was a full hit.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
