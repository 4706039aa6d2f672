"""First training step on a GPU: cold and warm, stock and kcache, in fresh processes of one run.

    python bench/gpu_step.py [--kinds plain,liger,delta_rule] [--runs 3] [--json FILE]

Warm stock has its directories intact; warm kcache has every directory but its store
empty. Every start of `ptxas` by any process, workers included, is counted through a
wrapper that logs and then runs the real one. Exit status 1 if a warm kcache run misses,
starts `ptxas`, or differs from its cold run in a bit of the loss or of a gradient's sum.
Where kernels were autotuned, stock also runs with kcache's winners as the only configs, and
must then give the same bits.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
MODES = ("stock", "kcache")


def directories(root: Path) -> dict[str, str]:
    """Environment that puts every cache below `root`."""
    names = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "TMPDIR": "tmp",
        "KCACHE_DIR": "kcache",
    }
    for name in names.values():
        (root / name).mkdir(parents=True, exist_ok=True)
    return {variable: str(root / name) for variable, name in names.items()}


def counted_ptxas(root: Path) -> tuple[dict[str, str], Path]:
    """A `ptxas` that logs its start and runs the real one, and the log."""
    import triton

    real = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "ptxas"
    wrapper, log = root / "ptxas", root / "ptxas.log"
    if not wrapper.exists():  # made once: what is known of ptxas is kept under its stamp
        wrapper.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
    return {"TRITON_PTXAS_PATH": str(wrapper)}, log


def run(mode: str, kind: str, root: Path, **more: str) -> dict[str, Any]:
    """One fresh process; its result, the starts of ptxas and what lies on disk afterwards."""
    caches = directories(root)
    tool, log = counted_ptxas(root)
    log.unlink(missing_ok=True)
    env = {**os.environ, **caches, **tool, **more}
    program = PROGRAMS / ("delta_rule.py" if kind == "delta_rule" else "gpt.py")
    done = subprocess.run(
        [sys.executable, str(program), mode, kind], env=env, capture_output=True, text=True, timeout=400
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            print(f"{kind:6} {mode:7} first step {json.loads(line[7:])['first_step_s']:6.2f} s", flush=True)
            starts = log.read_text().splitlines() if log.exists() else []
            kept = [p for name in ("kcache", "inductor", "triton") for p in (root / name).rglob("*") if p.is_file()]
            return {
                **json.loads(line[7:]),
                "ptxas": len(starts),
                "files": len(kept),
                "bytes": sum(p.stat().st_blocks * 512 for p in kept),
            }
    raise SystemExit(f"{mode} {kind} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def empty(root: Path) -> None:
    """Delete every cache directory but kcache's store."""
    for name in ("inductor", "triton", "tmp"):
        shutil.rmtree(root / name, ignore_errors=True)


def measure(kind: str, runs: int, root: Path) -> dict[str, Any]:
    """Cold once and warm `runs` times for both modes, interleaved."""
    found: dict[str, Any] = {mode: {"cold": run(mode, kind, root / mode), "warm": []} for mode in MODES}
    for _ in range(runs):
        found["stock"]["warm"].append(run("stock", kind, root / "stock"))
        empty(root / "kcache")
        found["kcache"]["warm"].append(run("kcache", kind, root / "kcache"))
    for mode in MODES:
        for what in ("first_step_s", "process_s"):
            found[mode][f"warm_{what}"] = statistics.median(r[what] for r in found[mode]["warm"])
    found["ratio_first_step"] = found["kcache"]["warm_first_step_s"] / found["stock"]["warm_first_step_s"]
    found["ratio_cold"] = found["kcache"]["cold"]["first_step_s"] / found["stock"]["cold"]["first_step_s"]
    found["problems"] = problems(found)
    if "winners" in found["kcache"]["cold"]:
        found["pinned"] = pinned(found["kcache"]["cold"], kind, root)
        found["problems"] += found["pinned"]["problems"]
    return found


def pinned(ours: dict[str, Any], kind: str, root: Path) -> dict[str, Any]:
    """A stock run with the winners of `ours` as the only configs, and in what it differs from `ours`."""
    file = root / "winners.json"
    file.write_text(json.dumps(ours["winners"]))
    found = run("stock", kind, root / "pinned", PINNED=str(file))
    same = (found["loss"], found["gradients"]) == (ours["loss"], ours["gradients"])
    found["problems"] = [] if same else ["values differ from stock's with the same winners"]
    found["problems"] += [f"{name}: not the fastest by its timings" for name in ours["odd"]]
    return found


def problems(found: dict[str, Any]) -> list[str]:
    """What a warm kcache run did that it must not, in words."""
    said, cold = [], found["kcache"]["cold"]
    for warm in found["kcache"]["warm"]:
        if (warm["loss"], warm["gradients"]) != (cold["loss"], cold["gradients"]):
            said.append("values differ from the cold run")
        if warm["ptxas"]:
            said.append(f"ptxas started {warm['ptxas']} times")
        for layer in ("aot", "fx", "triton", "tune"):
            counts = warm["kcache"]["layers"].get(layer, {})
            said += [f"{layer}: {n} {what}" for what, n in counts.items() if what in ("miss", "bypass", "error") and n]
    return said


def main() -> int:
    """Measure, print, write the JSON; 1 if a warm kcache run did what it must not."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--kinds", default="plain,liger")
    cli.add_argument("--runs", type=int, default=3)
    cli.add_argument("--json")
    args = cli.parse_args()
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": f"python bench/gpu_step.py --kinds {args.kinds} --runs {args.runs}",
        "versions": versions,
        "gpu": torch.cuda.get_device_name(),
    }
    for kind in args.kinds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = result[kind] = measure(kind, args.runs, Path(folder))
        for mode in MODES:
            cold, warm = found[mode]["cold"], found[mode]["warm_first_step_s"]
            print(
                f"{kind:6} {mode:7} cold {cold['first_step_s']:6.2f} s  warm {warm:6.2f} s  ptxas {cold['ptxas']}",
                end="",
            )
            print(f"/{found[mode]['warm'][-1]['ptxas']}  files {cold['files']}  {cold['bytes'] / 1e6:.1f} MB")
        same = found["stock"]["cold"]["loss"] == found["kcache"]["cold"]["loss"]
        print(
            f"{kind:6} warm ratio {found['ratio_first_step']:.2f}, cold ratio {found['ratio_cold']:.2f}, "
            f"same loss {same}"
        )
        print(f"{kind:6} last warm: {found['kcache']['warm'][-1]['kcache']['layers']}")
        for problem in found["problems"]:
            print(f"{kind:6} PROBLEM {problem}")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(result[kind]["problems"] for kind in args.kinds.split(",")) else 0


if __name__ == "__main__":
    sys.exit(main())
