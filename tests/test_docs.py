"""README.md, CI and the demo say what is there: commands, settings, and edits that still apply."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from kcache.config import SETTINGS
from kcache_cli.main import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _commands(group: click.Command, path: str = "kcache") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        return
    context = click.Context(group)
    for name in group.list_commands(context):  # commands are loaded when they are asked for
        command = group.get_command(context, name)
        assert command is not None, name
        if not command.hidden:
            yield f"{path} {name}", command
            yield from _commands(command, f"{path} {name}")


COMMANDS = dict(_commands(cli))
assert COMMANDS, "no command was found to check"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_documented(name: str) -> None:
    """Each command appears in README.md and has help."""
    assert f"`{name}" in README
    assert COMMANDS[name].help


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.id)
def test_setting_is_documented(setting: object) -> None:
    """Each setting's environment variable appears in README.md."""
    assert f"`{setting.variable}`" in README  # type: ignore[attr-defined]


def test_first_commands() -> None:
    """A reader meets `make demo` and `make test` first, and both are targets of the Makefile."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    commands = [line.split("#")[0].strip() for line in blocks[0].splitlines()]
    assert commands == ["make demo", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command.split()[1] for block in blocks for command in re.findall(r"^make \w+", block, re.M)} <= set(targets)


def test_ci_runs_what_the_readme_says() -> None:
    """CI calls the README's own test command, and the linters."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "make test" in lines
    assert "make lint" in lines


def test_python_examples_compile() -> None:
    """Every Python block in README.md is valid Python."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_module_table_is_complete() -> None:
    """How it works names every module below kcache/."""
    missing = [path.stem for path in (ROOT / "kcache").glob("[!_]*.py") if f"`{path.stem}`" not in README]
    assert not missing


def _demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("demo", ROOT / "bench" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo)
    spec.loader.exec_module(demo)
    return demo


def test_demo_edits_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edit of the demo finds its text in the program, and one that may hit leaves the code as it is."""
    demo = _demo(monkeypatch)
    for program in (demo.TRAIN, demo.KERNELS):
        sandbox = demo.Sandbox("stock", tmp_path / program.file)
        for edit in program.edits:
            before = _code(sandbox.programs / edit.file)
            sandbox.edit(edit.file, edit.old, edit.new)
            assert (_code(sandbox.programs / edit.file) == before) == edit.must_hit


def _code(path: Path) -> str:
    return ast.dump(ast.parse(path.read_text()))


def test_figures_fit_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README.md has the two marks between which bench/cache_hits.py puts its table."""
    assert README.count("<!-- figures -->") == README.count("<!-- /figures -->") == 1
    assert README.index("<!-- figures -->") < README.index("<!-- /figures -->")
