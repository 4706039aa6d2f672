"""Run a show in a process of its own: under the shim, or where it may mount file systems.

    host.call("tests.faults.steps:run", folder, ..., shim=True) -> Figures

imports the function in a fresh interpreter, calls it with the (JSON) arguments and hands its figures back.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.figures import Figures

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("shim.c")
KILL = {"before": 1, "half": 2, "after": 3}
_ERRORS = 100


@functools.cache
def no_compiler() -> str:
    """Why the shim cannot be made here; empty if it can."""
    return "" if _compiler() else "no C compiler"


@functools.cache
def no_mounts() -> str:
    """Why file systems cannot be mounted here; empty if they can."""
    if not shutil.which("unshare"):
        return "no unshare(1)"
    probe = [*_namespace(), "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def call(function: str, *arguments: Any, shim: bool = False, mounts: bool = False, timeout: float = 3600) -> Figures:
    """Figures of `function` ("module:name") called with `arguments` in another process. Raises where that fails."""
    command = [sys.executable, "-m", "tests.faults.host", function, json.dumps(arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with tempfile.TemporaryDirectory() as folder:
        if shim:
            library = Path(folder) / "shim.so"
            subprocess.run([_compiler(), "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
            env["LD_PRELOAD"] = str(library)
        if mounts:
            command = [*_namespace(), *command]
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{function} ended with {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Figures(Counter(found.pop("faults")), Counter(found.pop("counts")), found)


def arm(at: int, how: int) -> None:
    """At the `at`-th write, sync or change of length of data.mdb from now: one of `KILL`, or see `failing`."""
    ctypes.CDLL(None).faults_arm(at, how)


def failing(number: int) -> int:
    """What to `arm` so that this call and every later one fails with this error number."""
    return _ERRORS + number


def calls() -> int:
    """How many calls there were since `arm`."""
    return int(ctypes.CDLL(None).faults_calls())


def log_to(path: Path) -> None:
    ctypes.CDLL(None).faults_log(os.fsencode(path))


def mark(n: int) -> None:
    ctypes.CDLL(None).faults_mark(ctypes.c_uint64(n))


def _compiler() -> str:
    return shutil.which("cc") or shutil.which("gcc") or ""


def _namespace() -> list[str]:
    own = ["unshare", "--mount"]
    return own if os.geteuid() == 0 else [*own, "--user", "--map-root-user"]


def main(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    figures = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    print(json.dumps(figures.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
