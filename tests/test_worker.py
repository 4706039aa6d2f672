"""The seam to Inductor's compile workers: what one has compiled, another finds in the store.

A worker of torch's needs a GPU in the program; here fresh interpreters run the same task function on a task that compiles
one kernel for a named target.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import kcache
from kcache.hooks import session

ROOT = Path(__file__).parent.parent

TASK = """
import pickle, subprocess, sys
sys.path[:0] = [{root!r}, {folder!r}]
started = []
init = subprocess.Popen.__init__
def popen(self, args, *rest, **keywords):
    if "ptxas" in str(args[0]) and "--version" not in args:
        started.append(args)
    init(self, args, *rest, **keywords)
subprocess.Popen.__init__ = popen
task = pickle.load(open({task!r}, "rb"))
def theirs():
    from generated import kern
    from tests.test_build import ALIGNED, SIGNATURE, TARGET, ASTSource, make_backend, triton
    kern.__globals__["__name__"] = "torch._inductor.runtime.compile_tasks.generated"
    source = ASTSource(kern, SIGNATURE, {{(3,): 64}}, ALIGNED)
    options = make_backend(TARGET).parse_options({{}})
    return triton.compile(source, target=TARGET, options=options.__dict__).hash
compile_triton, (_, given, known) = task.func, task.args
import json
print("RESULT " + json.dumps([compile_triton(theirs, given, known), len(started)]))
"""


def run(folder: Path) -> list[Any]:
    """(hash, starts of the assembler) of one fresh worker."""
    code = TASK.format(root=str(ROOT), folder=str(folder), task=str(folder / "task"))
    environment = {name: value for name, value in os.environ.items() if name != "KCACHE_DIR"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr
    return json.loads(lines[0][7:])  # type: ignore[no-any-return]


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A folder with the task that torch would send, as torch pickles it."""
    from tests.test_link import kern

    (tmp_path / "generated.py").write_text(kern("x * 7.5"))
    kcache.enable()
    from torch._inductor import async_compile

    task = async_compile._worker_compile_triton
    assert isinstance(task, functools.partial)
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    kcache.disable()
    assert not isinstance(async_compile._worker_compile_triton, functools.partial)
    return tmp_path


def test_what_one_worker_compiled_another_finds(worker: Path) -> None:
    first = run(worker)
    assert first[1] == 1
    shutil.rmtree(worker / "triton")
    assert run(worker) == [first[0], 0]
    kcache.enable()
    store = session.current().cache.store
    assert [len(list(store.scan(layer))) for layer in ("triton", "recipe")] == [1, 1]
    kcache.disable()


def test_a_store_that_cannot_be_used_leaves_the_task(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = pickle.loads((worker / "task").read_bytes())
    theirs, given, known = task.args
    given = {**given, "dir": worker / "task" / "below a file", "strict": False}
    (worker / "task").write_bytes(pickle.dumps(functools.partial(task.func, theirs, given, known)))
    assert run(worker)[1] == 1
