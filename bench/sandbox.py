"""A side of a comparison: its own copy of the programs, its own cache directories, and the processes run with them.

Every process is fresh and sees no cache but its sandbox's: Inductor's and Triton's directories, kcache's store, and the
system temp directory, below which torch keeps precompiled headers. `forget()` deletes all of these except kcache's
store, as a new container or a cleaned /tmp does.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
SIDES = ("stock", "kcache")

# Nothing that the caller has set for its own caches may reach a process here.
_FOREIGN = ("KCACHE", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCH_LOGS", "TRITON_")
_TIMEOUT = 600
_HEADERS = "precompiled_headers"


class ProgramFailed(Exception):
    """A program ended with an error; the message holds the end of what it wrote."""


@dataclass(frozen=True)
class Outcome:
    """What one process reported."""

    first_s: float
    process_s: float
    right: bool
    counters: dict[str, dict[str, int]]
    kcache: dict[str, Any] | None

    def hits(self, layer: str) -> str:
        """Hits and misses of one of torch's layers, as `2/0`; a bypass is added as `+1b`."""
        count = self.counters[layer]
        return f"{count['hit']}/{count['miss']}" + (f"+{count['bypass']}b" if count["bypass"] else "")

    @property
    def full_hit(self) -> bool:
        """Whether nothing was compiled: some layer answered, none missed or was bypassed, torch's and kcache's."""
        counts = [*self.counters.values(), *self.layers.values()]
        answered = any(count.get("hit") for count in counts)
        return answered and not any(count.get("miss") or count.get("bypass") for count in counts)

    @property
    def layers(self) -> dict[str, dict[str, int]]:
        """kcache's own counts by layer; empty for stock."""
        return self.kcache["layers"] if self.kcache else {}

    def blame(self) -> str:
        """The reasons that kcache gave for what it missed or bypassed."""
        reasons = self.kcache["reasons"] if self.kcache else []
        return "; ".join(f"{r['layer']} {r['outcome']}: {r['reason']}" for r in reasons) or "no reason given"


class Sandbox:
    """One side, `stock` or `kcache`, in a directory of its own below `root`."""

    def __init__(self, side: str, root: Path) -> None:
        self.side = side
        self.programs = root / side / "programs"
        self.store = root / side / "kcache"
        self._scratch = root / side / "scratch"
        shutil.copytree(PROGRAMS, self.programs, ignore=shutil.ignore_patterns("__pycache__"))
        self.forget()

    def forget(self, *, store: bool = False) -> None:
        """Empty every cache directory except kcache's store; with `store`, that too."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        (self._scratch / "tmp").mkdir(parents=True)
        if store:
            shutil.rmtree(self.store, ignore_errors=True)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace `old`, which must occur exactly once in `file`, by `new`."""
        path = self.programs / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file} holds {text.count(old)} times: {old}")
        path.write_text(text.replace(old, new))

    def restore(self) -> None:
        """Undo all edits."""
        shutil.copytree(PROGRAMS, self.programs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    def output(self, program: str, *arguments: str) -> str:
        """What `program` prints, run in a fresh process."""
        # Two edits within a second may leave the size as it was, and then Python would trust its old bytecode.
        shutil.rmtree(self.programs / "__pycache__", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, program, *arguments],
            cwd=self.programs,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
        if done.returncode:
            raise ProgramFailed(f"{self.side}: {program} exited {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def run(self, program: str) -> Outcome:
        """Run `program`, one of those that end in `measure.first_step`, and return what it reported."""
        started = time.perf_counter()
        output = self.output(program, self.side)
        process_s = time.perf_counter() - started
        account = json.loads(output.splitlines()[-1])
        return Outcome(account["first_s"], process_s, account["right"], account["counters"], account.get("kcache"))

    def disk(self) -> tuple[int, int]:
        """Files and bytes kept for a warm start: kcache's store, or stock's directories.

        Stock's precompiled header, about 150 MB, is left out: one serves all programs.
        """
        folder = self.store if self.side == "kcache" else self._scratch
        files = (path for path in folder.rglob("*") if path.is_file() and _HEADERS not in path.parts)
        stats = [path.stat() for path in files]
        # A sparse file counts with what it holds, not with the room that it may grow into.
        return len(stats), sum(min(stat.st_size, stat.st_blocks * 512) for stat in stats)

    def _environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return env | {
            "KCACHE_DIR": str(self.store),
            "TORCHINDUCTOR_CACHE_DIR": str(self._scratch / "inductor"),
            "TRITON_CACHE_DIR": str(self._scratch / "triton"),
            "TRITON_HOME": str(self._scratch),
            "TMPDIR": str(self._scratch / "tmp"),
        }


def versions() -> dict[str, str]:
    """The versions that a figure depends on, the processor, and the GPU where there is one."""
    found = {"python": platform.python_version(), "cpu": _cpu(), "cores": str(len(os.sched_getaffinity(0)))}
    for name in ("torch", "triton", "kcache"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    if gpu := gpu_name():
        found["gpu"] = gpu
    return found


def gpu_name() -> str | None:
    """The name of the CUDA device, asked in a process of its own so that the caller need not import torch."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout.strip() or None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
