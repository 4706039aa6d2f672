"""Imports point downward, and torch, lmdb and click each enter at a few doors: the contracts in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FREE = {"__init__", "config", "counters", "errors", "logs", "units"}
"""The vocabulary, which every layer may import."""


def _modules(folder: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob("*.py")}


def test_contracts_hold() -> None:
    """import-linter keeps every contract. In a process of its own, since it silences loggers that exist."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_is_in_a_contract() -> None:
    """A new module has to be put into a layer, so that it cannot import upward unseen."""
    layers = (ROOT / "pyproject.toml").read_text().partition("[tool.importlinter]")[2]
    missing = {name for name in _modules("kcache") - FREE if f"kcache.{name}" not in layers}
    assert not missing, f"in no contract of pyproject.toml: {sorted(missing)}"


@pytest.mark.parametrize("module", ["kcache", "kcache.autoload", "kcache.cache", "kcache_cli.main"])
def test_import_needs_no_torch(module: str) -> None:
    """Importing kcache or its command line imports neither torch nor Triton."""
    code = f"import sys, {module}; print(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
