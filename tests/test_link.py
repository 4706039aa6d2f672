"""The linker: its text is what Triton makes the same code of, and says so of itself."""

from __future__ import annotations

import ast
import importlib.util
import linecache
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from kcache.closure import fingerprint  # noqa: E402
from kcache.errors import Opaque  # noqa: E402
from kcache.launcher import bottom, is_jitted  # noqa: E402
from kcache.link import link  # noqa: E402
from tests.edits import OPAQUE, Row, found, kernels, launchers, load, write  # noqa: E402
from tests.ttir import lower  # noqa: E402

HEAD = "import triton\nimport triton.language as tl\n"
BODY = """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    x = tl.load(x_ptr + offs, mask=m)
    tl.store(o_ptr + offs, {}, mask=m)
"""


def kern(value: str, before: str = "") -> str:
    return f"{HEAD}{before}\n@triton.jit\ndef kern(x_ptr, o_ptr, n, BLOCK: tl.constexpr):{BODY.format(value)}"


def program(folder: Path, files: dict[str, str]) -> Any:
    files = {name: dedent(text) for name, text in files.items()}
    write(files, folder)
    return load(folder, files, "kern:kern")


def compiled(text: str, name: str, folder: Path) -> Any:
    """The jitted function `name` of a linked module, imported from a file that nothing else is near to."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"linked_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def linked(kernel: Any, folder: Path) -> Any:
    return compiled(link(kernel).module, bottom(kernel).fn.__name__, folder)


def outcome(kernel: Any) -> str:
    """TTIR, or the kind of Triton's refusal."""
    try:
        return lower(kernel)
    except Exception as error:
        return type(error).__name__


ROWS = [row for row in [*kernels.ROWS, *launchers.ROWS, *found.ROWS] if row.kind != OPAQUE and row.name != "partial"]

UNPRINTABLE = {"enum member as a value", "enumeration of Triton's", "module behind a branch's local"}
"""Rows whose kernel names something that no text can say."""

WIDER = {
    "class attribute", "inherited class attribute", "enum member", "named tuple", "namespace", "instance attribute",
    "static method",
}  # fmt: skip
"""Rows that Triton refuses since a class or an object is global, and that link."""


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_rows_of_the_table_give_the_same_code(row: Row, tmp_path: Path) -> None:
    """Both versions of every edit: linked and original are lowered alike, or refused alike."""
    for edited in (False, True):
        folder = tmp_path / str(edited)
        write(row.version(edited), folder)
        kernel = load(folder, [*row.before, *row.after], row.target)
        if not is_jitted(bottom(kernel)):
            pytest.skip("not a kernel")
        if row.name in UNPRINTABLE:
            with pytest.raises(Opaque):
                link(kernel)
            return
        wanted, got = outcome(bottom(kernel)), outcome(linked(kernel, tmp_path / f"linked {edited}"))
        assert got.startswith("module") if row.name in WIDER else got == wanted


SAME_NAMES = {
    "a.py": HEAD + "K = tl.constexpr(2.0)\n@triton.jit\ndef helper(x):\n    return x * K\n",
    "b.py": HEAD + "K = tl.constexpr(3.0)\n@triton.jit\ndef helper(x):\n    return x * K\n",
    "kern.py": kern("a.helper(x) + b.helper(x) * K", "import a, b\nK = tl.constexpr(5.0)\n"),
}


def test_names_that_collide_are_kept_apart(tmp_path: Path) -> None:
    kernel = program(tmp_path / "p", SAME_NAMES)
    text = lower(linked(kernel, tmp_path / "linked"))
    assert text == lower(kernel)
    assert all(f" {number}" in text for number in ("2.000000e+00", "3.000000e+00", "5.000000e+00"))
    tree = ast.parse(link(kernel).module)
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert names == ["helper", "helper_1", "kern"]


def made(**files: str) -> dict[str, str]:
    return {f"{name}.py": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "constant"),
    [
        (made(kern=kern("x * K", "K = tl.constexpr(7.5)\n")), "7.5"),
        (made(cfg="K = 7.5\n", kern=kern("x * cfg.K", "import cfg\n")), "7.5"),
        (made(kern=kern("x * C.K", "class C:\n    K = 7.5\n")), "7.5"),
        (made(kern=kern("x * fac(2)", "@triton.constexpr_function\ndef fac(a):\n    return a * 3.75\n")), "7.5"),
        (made(kern=kern("f(x)", "@triton.jit\ndef f(x, k: tl.constexpr = 7.5):\n    return x * k\n")), "7.5"),
        (made(kern=kern("x + tl.reduce(x, 0, f)", "@triton.jit\ndef f(a, b):\n    return a * 7.5 + b\n")), "7.5"),
        (made(kern=kern("tl.associative_scan(x, 0, f)", "@triton.jit\ndef f(a, b):\n    return a * 7.5 + b\n")), "7.5"),
        (made(kern=kern("x.to(D).to(tl.float32)", "D = tl.float8e5\n")), "f8E5M2"),
        (made(kern=kern("op(x)", "op = tl.sin\n")), "math.sin"),
        (made(kern=kern("f(x, g)", "@triton.jit\ndef g(x):\n    return x * 7.5\n@triton.jit\ndef f(x, g: tl.constexpr):\n    return g(x)\n")), "7.5"),
        (made(kern=kern("k * x", "k = tl.constexpr(7.5)\n").replace("    tl.store", "    if n < 0:\n        pass\n    if BLOCK < 0:\n        k = 1\n    tl.store")), "7.5"),
        (made(kern=kern("cfg.D[1][1] * x", "import cfg\n"), cfg="D = (1, (2, 7.5))\n"), "7.5"),
    ],
    ids=["global", "module", "class", "constexpr function", "default", "reduce", "scan", "dtype",
         "builtin alias", "function argument", "global behind a local", "table"],
)  # fmt: skip
def test_dependencies_stand_in_the_text(files: dict[str, str], constant: str, tmp_path: Path) -> None:
    """Each is in the text and reaches the code, and nothing of the program's is imported."""
    kernel = program(tmp_path / "p", files)
    text = link(kernel).module
    assert constant in lower(linked(kernel, tmp_path / "linked"))
    imported = {a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names}
    assert imported <= {"triton", "triton.language", "types"}


def test_plain_python_is_printed_and_refused_as_before(tmp_path: Path) -> None:
    """Triton 3.6 to 3.7 take no plain function inside a constexpr function, and the text is to show the same error."""
    before = "import p\n@triton.constexpr_function\ndef fac(a):\n    return p.plain(a)\n"
    kernel = program(
        tmp_path / "p", {"p.py": "def plain(a):\n    return a * 4\n", "kern.py": kern("x * fac(2)", before)}
    )
    assert "# from p.plain\ndef plain(a):\n    return a * 4\n" in link(kernel).module
    assert outcome(linked(kernel, tmp_path / "linked")) == outcome(kernel)


def test_text_reads_well(tmp_path: Path) -> None:
    kernel = program(
        tmp_path,
        {"hlp.py": HEAD + "EPS = tl.constexpr(1e-5)\n@triton.jit\ndef scale(x, k):\n    # why\n    return x * k + EPS\n",
         "kern.py": kern("hlp.scale(x, 2)", "import hlp\n")},
    )  # fmt: skip
    assert link(kernel).module == dedent(
        """\
        import triton
        import triton.language as tl

        EPS = tl.constexpr(1e-05)

        # from hlp.scale
        @triton.jit
        def scale(x, k):
            return x * k + EPS

        # from kern.kern
        @triton.jit
        def kern(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
            offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            m = offs < n
            x = tl.load(x_ptr + offs, mask=m)
            tl.store(o_ptr + offs, scale(x, 2), mask=m)
        """
    )
    assert fingerprint(kernel).source == link(kernel).module


def test_body_names_everything_below_it(tmp_path: Path) -> None:
    """Inductor puts the decorator before the text, so the kernel comes first there; `exec` must still define all."""
    kernel = program(tmp_path, SAME_NAMES)
    found = link(kernel)
    assert found.body.startswith("def kern(") and found.body.count("def ") == found.module.count("def ") == 3
    tree = ast.parse(found.body)
    assert {ast.dump(n) for n in tree.body[1:]} <= {ast.dump(n) for n in ast.parse(found.module).body}


def test_text_is_the_same_wherever_the_program_lies(tmp_path: Path) -> None:
    texts = {link(program(tmp_path / name, SAME_NAMES)).module for name in ("one", "two")}
    assert len(texts) == 1


@pytest.mark.parametrize("name", ["tl", "triton", "max", "types"])
def test_parameters_that_hide_what_the_text_imports(name: str, tmp_path: Path) -> None:
    files = {
        "cfg.py": "K = 2.5\n",
        "kern.py": f"import triton\nimport triton.language as lang\nimport cfg\n@triton.jit\ndef kern(x_ptr, o_ptr, n, BLOCK: lang.constexpr):\n"
        f"    {name} = lang.arange(0, 16)\n    lang.store(o_ptr + {name}, lang.load(x_ptr + {name}) * cfg.K)\n",
    }
    kernel = program(tmp_path / "p", files)
    assert lower(linked(kernel, tmp_path / "linked")) == lower(kernel)


def test_a_python_function_whose_file_was_edited_is_refused(tmp_path: Path) -> None:
    """Triton holds the text of kernels, but a constexpr function runs code that the file may not show any more."""
    files = {"kern.py": kern("x * fac(2)", "@triton.constexpr_function\ndef fac(a):\n    return a * 3\n")}
    kernel = program(tmp_path, files)
    assert "a * 3" in link(kernel).module
    (tmp_path / "kern.py").write_text(files["kern.py"].replace("a * 3", "a * 4"))
    linecache.checkcache()
    with pytest.raises(Opaque, match="edited since it was loaded"):
        link(kernel)


def test_what_cannot_be_said_is_refused_by_name(tmp_path: Path) -> None:
    before = "import enum\nclass E(enum.IntEnum):\n    A = 1\n"
    kernel = program(tmp_path, {"kern.py": kern("x * E.A", before)})
    with pytest.raises(Opaque, match=r"kern: E\.A"):
        link(kernel)
    with pytest.raises(Opaque):
        link(print)


def test_options_that_the_text_must_carry(tmp_path: Path) -> None:
    before = "@triton.jit(noinline=True)\ndef f(x):\n    return x * 2\n"
    kernel = program(tmp_path, {"kern.py": kern("f(x)", before)})
    assert "@triton.jit(noinline=True)\ndef f" in link(kernel).module
