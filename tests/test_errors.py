"""Compile errors in a linked text name the program's file and line.

Inductor's own method needs a GPU; here one of the same name compiles for a named target.
"""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: E402

import kcache  # noqa: E402
from kcache.hooks import errors, printed  # noqa: E402
from tests.test_build import SIGNATURE, TARGET, ASTSource  # noqa: E402
from tests.test_link import kern, program  # noqa: E402

HELPERS = '''\
import triton
import triton.language as tl


@triton.jit
def scale(x,  # of rows
          k: tl.constexpr):
    """Scales."""

    # nothing is here
    y = x * \\
        k
    if k == 2:
        z = 1; y += z
    else:
        tl.static_assert(
            k == 4,
        )
        y = y.absent
    return y
'''


def precompile(self: Any, cfg: Any) -> Any:
    return triton.compile(ASTSource(self.fn, SIGNATURE, {(3,): 64}, {}), target=TARGET)


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(CachingAutotuner, "_precompile_config", lambda self, cfg: precompile(self, cfg))
    kcache.enable()
    yield
    kcache.disable()


def generated(kernel: Any, folder: Path) -> Any:
    """The kernel in a module as Inductor generates it."""
    text = printed.text_of(kernel, lambda: pytest.fail("not linked"))
    path = folder / "generated.py"
    path.write_text(f"import triton\nimport triton.language as tl\n\n\n@triton.jit\n{text}")
    spec = importlib.util.spec_from_file_location("torch._inductor.runtime.compile_tasks.generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kern


def message(kernel: Any, folder: Path) -> str:
    made = generated(kernel, folder)
    with pytest.raises(triton.CompilationError) as raised:
        CachingAutotuner._precompile_config(SimpleNamespace(fn=made), None)
    return str(raised.value)


@pytest.mark.parametrize(
    ("factor", "old", "new", "line"),
    [
        (4, "", "", 19),
        (3, "", "", 16),
        (2, "z = 1; y += z", "z = 1; y += z.absent", 14),
        (2, "y = x * ", "y = x.absent * ", 11),
    ],
)
def test_an_error_in_a_helper_names_its_file_and_line(
    factor: int, old: str, new: str, line: int, enabled: None, tmp_path: Path
) -> None:
    files = {"hlp.py": HELPERS.replace(old, new), "kern.py": kern(f"hlp.scale(x, {factor})", "import hlp\n")}
    kernel = program(tmp_path, files)
    text = message(kernel, tmp_path)
    last = text.splitlines()[-1]
    assert last.startswith(f"in hlp.scale, {tmp_path / 'hlp.py'}:{line}, linked as scale in "), text
    place, _, number = last.rpartition(" in ")[2].rpartition(":")
    shown = Path(place).read_text().splitlines()[int(number) - 1]
    original = (tmp_path / "hlp.py").read_text().splitlines()[line - 1]
    assert shown.split()[0].split("(")[0] in original


def test_an_error_in_the_kernel_itself(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": "# a line\n# and another\n" + kern("x.absent")})
    lines = (tmp_path / "kern.py").read_text().splitlines()
    line = next(number for number, each in enumerate(lines, 1) if "x.absent" in each)
    assert f"in kern.kern, {tmp_path / 'kern.py'}:{line}, linked as kern in" in message(kernel, tmp_path)


def test_another_kernels_error_is_left_alone(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("x.absent")})
    made = generated(kernel, tmp_path)
    errors.KNOWN.clear()
    with pytest.raises(triton.CompilationError) as raised:
        CachingAutotuner._precompile_config(SimpleNamespace(fn=made), None)
    assert "linked as" not in str(raised.value)


def test_what_is_known_travels_to_workers(enabled: None, tmp_path: Path) -> None:
    from torch._inductor import async_compile

    errors.KNOWN.clear()
    task = async_compile._worker_compile_triton
    generated(program(tmp_path, {"kern.py": kern("x * 2")}), tmp_path)
    known = pickle.loads(pickle.dumps(task)).args[2]
    (origins,) = known.values()
    assert origins["kern"].name == "kern.kern"
