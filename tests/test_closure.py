"""Fingerprints: the tables of edits, and what a table of two versions cannot show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kcache.closure import fingerprint  # noqa: E402
from tests.edits import NEUTRAL, OPAQUE, Row, load, rows, write  # noqa: E402

ROWS = rows()


def loaded(row: Row, edited: bool, folder: Path) -> Any:
    """The row's target, imported from a folder of its own."""
    write(row.version(edited), folder)
    names = [*row.before, *row.after]
    return load(folder, names, row.target)


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_edit(row: Row, tmp_path: Path) -> None:
    before = fingerprint(loaded(row, False, tmp_path / "before"))
    after = fingerprint(loaded(row, True, tmp_path / "after"))
    if row.kind == OPAQUE:
        assert before.opaque
        return
    assert not before.opaque and not after.opaque
    assert (before.digest == after.digest) == (row.kind == NEUTRAL)
    if row.kind != NEUTRAL:
        assert [(p.name, p.digest) for p in before.parts] != [(p.name, p.digest) for p in after.parts]


def test_table_is_wide() -> None:
    assert len(ROWS) >= 80
    assert len({r.name for r in ROWS}) == len(ROWS)


PRINT = """
import json, sys
sys.path[:0] = {path!r}
sys.dont_write_bytecode = True
from pathlib import Path
from kcache.closure import fingerprint
from tests.edits import load, rows
out = {{}}
table = rows()
for number, row in enumerate(reversed(table) if {reverse} else table):
    number = len(table) - 1 - number if {reverse} else number
    if row.kind != "opaque":
        out[row.name] = fingerprint(load(Path({tree!r}) / str(number), [*row.before, *row.after], row.target)).digest.hex
print(json.dumps(out))
"""


def test_other_process(tmp_path: Path) -> None:
    for number, row in enumerate(ROWS):
        write(row.version(False), tmp_path / "one" / str(number))
    shutil.copytree(tmp_path / "one", tmp_path / "two" / "deeper")
    found = []
    for tree, seed, reverse in (("one", "1", False), ("two/deeper", "2", True)):
        home = tmp_path / f"home{seed}"
        home.mkdir()
        root = str(Path(__file__).parents[1])
        code = PRINT.format(path=[root], tree=str(tmp_path / tree), reverse=reverse)
        env = {**os.environ, "PYTHONHASHSEED": seed, "HOME": str(home)}
        done = subprocess.run([sys.executable, "-c", code], cwd=home, env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1]
    assert len(found[0]) >= 80


def program(tmp_path: Path, text: str) -> types.ModuleType:
    """A module made of `text`."""
    write({"prog.py": "import torch, triton\nimport triton.language as tl\n" + text}, tmp_path)
    module: types.ModuleType = load(tmp_path, ["prog.py"], "prog:__spec__") and sys.modules["prog"]
    return module


KERNEL = """
SC = tl.constexpr(2)
TABLE = {"a": [1]}
def plain(a, k=[1]):
    return a + len(TABLE) + len(k)
@triton.constexpr_function
def fac(a):
    return plain(a)
@triton.jit
def helper(x):
    return x * SC
@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def kern(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, helper(tl.load(x_ptr)) + fac(1))
"""

CHANGES = {
    "global": lambda m: setattr(m, "SC", m.tl.constexpr(3)),
    "global of equal value and another type": lambda m: setattr(m, "SC", m.tl.constexpr(2.0)),
    "inside a constexpr": lambda m: setattr(m.SC, "value", 3),
    "element of a mutable global": lambda m: m.TABLE["a"].append(2),
    "entry of a mutable global": lambda m: m.TABLE.update(b=1),
    "another helper": lambda m: setattr(m, "helper", m.triton.jit(m.plain)),
    "code": lambda m: setattr(m.plain, "__code__", (lambda a, k=1: a).__code__),
    "defaults": lambda m: setattr(m.plain, "__defaults__", (2,)),
    "inside a default": lambda m: m.plain.__defaults__[0].append(2),
    "helper's text": lambda m: m.helper._unsafe_update_src("def helper(x):\n    return x\n"),
    "helper's option": lambda m: setattr(m.helper, "noinline", True),
    "configuration": lambda m: m.kern.configs[0].kwargs.update(BLOCK=128),
    "configuration's option": lambda m: setattr(m.kern.configs[0], "num_warps", 8),
    "configuration added": lambda m: m.kern.configs.append(m.triton.Config({"BLOCK": 32})),
    "launcher's field": lambda m: setattr(m.kern, "keys", []),
    "launcher's new field": lambda m: setattr(m.kern, "new_policy", 1),
    "kernel's new field": lambda m: setattr(m.kern.fn, "new_policy", 1),
    "inner function": lambda m: setattr(m.kern, "fn", m.helper),
    "name that shadows a builtin": lambda m: setattr(m, "len", max),
}


@pytest.mark.parametrize("change", CHANGES)
def test_asked_again(change: str, tmp_path: Path) -> None:
    module = program(tmp_path, KERNEL)
    first = fingerprint(module.kern)
    assert not first.opaque
    assert fingerprint(module.kern) is first
    CHANGES[change](module)
    assert fingerprint(module.kern).digest != first.digest


HOLDERS = """
import collections, dataclasses, functools, numpy, os, types
class L(list): pass
class D(dict): pass
@dataclasses.dataclass
class C:
    __slots__ = ("k",)
    k: int
lst, dct, dq, arr = L([1]), D(a=1), collections.deque([1]), numpy.array([1, 2])
inner = {"a": 1}
proxy, slotted = types.MappingProxyType(inner), C(1)
os.environ["KC_HELD"] = "1"
@functools.singledispatch
def single(x):
    return x
def fn(x):
    return x, lst, dct, dq, arr, proxy, slotted, single, os.environ["KC_HELD"], plain
def plain():
    return 1
"""

HELD = {
    "subclass of list": lambda m: m.lst.append(2),
    "subclass of dict": lambda m: m.dct.update(a=2),
    "deque": lambda m: m.dq.append(2),
    "array": lambda m: m.arr.__setitem__(0, 5),
    "mapping behind a proxy": lambda m: m.inner.update(a=2),
    "slots of a dataclass": lambda m: setattr(m.slotted, "k", 2),
    "single dispatch": lambda m: m.single.register(int, m.plain),
    "environment variable": lambda m: m.os.environ.update(KC_HELD="2"),
    "environment variable removed": lambda m: m.os.environ.pop("KC_HELD"),
    "attribute given to a function": lambda m: setattr(m.plain, "k", 2),
}


@pytest.mark.parametrize("change", HELD)
def test_asked_again_what_objects_hold(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KC_HELD", "")
    module = program(tmp_path, HOLDERS)
    first = fingerprint(module.fn)
    assert not first.opaque
    assert fingerprint(module.fn) is first
    HELD[change](module)
    assert fingerprint(module.fn).digest != first.digest


def test_running_changes_nothing(tmp_path: Path) -> None:
    module = program(tmp_path, KERNEL)
    first = fingerprint(module.kern)
    hash(module.helper)
    module.kern.cache[1] = module.kern.best_config = module.kern.configs[0]
    module.kern.nargs, module.kern.bench_time, module.kern.configs_timings = {"n": 1}, 1.0, {}
    module.kern.fn.device_caches["x"] = ()
    assert fingerprint(module.kern) is first


def test_closure_cell(tmp_path: Path) -> None:
    module = program(tmp_path, "def make():\n    k = 1\n    def fn():\n        return k\n    def bump():\n        nonlocal k\n        k += 1\n    return fn, bump\n")
    fn, bump = module.make()
    first = fingerprint(fn)
    bump()
    assert fingerprint(fn).digest != first.digest


def test_file_edited_after_import(tmp_path: Path) -> None:
    module = program(tmp_path, "def fn(x):\n    return x + 1\n")
    first = fingerprint(module.fn)
    (tmp_path / "prog.py").write_text("def fn(x):\n    return x + 2\n")
    clone = types.FunctionType(module.fn.__code__, module.fn.__globals__, "fn")
    assert fingerprint(clone).digest == first.digest


def test_difference_is_explained(tmp_path: Path) -> None:
    module = program(tmp_path, KERNEL)
    first = {p.name: p for p in fingerprint(module.kern).parts}
    module.SC = module.tl.constexpr(3)
    second = {p.name: p for p in fingerprint(module.kern).parts}
    changed = [name for name in first if first[name].digest != second[name].digest]
    assert changed == ["constant prog.SC"]
    assert second["constant prog.SC"].text == b"constexpr(3)"


def test_operators_are_reported(tmp_path: Path) -> None:
    module = program(tmp_path, """
@torch.library.custom_op("kcache_lab::foo", mutates_args=())
def foo(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
def by_name(x):
    return torch.ops.kcache_lab.foo(x) + torch.ops.aten.sin(x)
def by_object(x):
    return foo(x)
def inside(x):
    import torch as t
    return (lambda: t.ops.kcache_lab.foo.default(x))()
""")  # fmt: skip
    for name in ("by_name", "by_object", "inside"):
        found = fingerprint(getattr(module, name))
        assert found.operators == ("kcache_lab::foo",), name
        assert not found.opaque


def test_switches_count(tmp_path: Path) -> None:
    module = program(tmp_path, "def fn(x):\n    return x if torch.is_grad_enabled() else None\n")
    first = fingerprint(module.fn)
    with torch.no_grad():
        assert fingerprint(module.fn).digest != first.digest
    assert fingerprint(module.fn).digest == first.digest


def test_assertions_keep_their_place_under_debug(tmp_path: Path) -> None:
    text = "@triton.jit{}\ndef kern(x_ptr):\n    tl.device_assert(tl.load(x_ptr) > 0, 'no')\n"
    plain, moved = (fingerprint(program(tmp_path / str(len(lead)), lead + text.format("")).kern) for lead in ("", "\n\n"))
    assert plain.digest == moved.digest and plain.locations != moved.locations
    checked, shifted = (fingerprint(program(tmp_path / str(9 + len(lead)), lead + text.format("(debug=True)")).kern) for lead in ("", "\n"))
    assert checked.digest != shifted.digest


def test_kernel_made_by_exec(tmp_path: Path) -> None:
    import linecache

    text = "import triton\n@triton.jit\ndef kern(x_ptr):\n    x_ptr + 1\n"
    linecache.cache["<made>"] = (len(text), None, text.splitlines(True), "<made>")
    space: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, "<made>", "exec"), space)
    assert not fingerprint(space["kern"]).opaque
