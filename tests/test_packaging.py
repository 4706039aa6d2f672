"""What pyproject.toml promises: every folder is packaged, the script and the autoload entry point lead somewhere."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, metadata, version
from pathlib import Path

import pytest

import kcache
from kcache import autoload

ROOT = Path(__file__).parents[1]


def _packages() -> set[str]:
    """Each folder with Python files below kcache/ and cli/, by the name under which it is installed."""
    folders = {path.parent for top in ("kcache", "cli") for path in (ROOT / top).rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    return {"kcache_cli" + name.removeprefix("cli") if name.startswith("cli") else name for name in names}


def test_every_folder_is_packaged() -> None:
    """`packages` is a list: a folder that it does not name is left out of the wheel without a word."""
    line = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("packages = "))
    listed = {name.strip(' "') for name in line.partition("[")[2].rstrip("]").split(",")}
    assert listed == _packages()


def test_version_is_one() -> None:
    """The version in pyproject.toml is the module's."""
    assert f'version = "{kcache.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert version("kcache") == kcache.__version__


def test_torch_and_triton_are_the_users_own() -> None:
    """Neither is a hard dependency: installing kcache must not replace the user's."""
    requires = metadata("kcache").get_all("Requires-Dist") or []
    hard = [line for line in requires if "extra ==" not in line]
    assert hard and not any(line.startswith(("torch", "triton")) for line in hard)


@pytest.mark.slow
def test_public_names_survive_their_modules() -> None:
    """`kcache.stats` stays the function although a module has that name, whatever was imported before."""
    pytest.importorskip("torch")
    code = (
        "import kcache, kcache.hooks, kcache.config\n"
        "assert not [n for n in kcache.__all__ if not callable(getattr(kcache, n))]\n"
        "print(kcache.stats())"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_entry_points_load() -> None:
    """The script and the entry point that torch imports exist."""
    (script,) = (point for point in entry_points(group="console_scripts") if point.name == "kcache")
    assert callable(script.load())
    (hook,) = (point for point in entry_points(group="torch.backends") if point.name == "kcache")
    assert hook.load() is autoload.autoload


@pytest.mark.parametrize(
    ("value", "wanted"), [(None, False), ("", False), ("0", False), ("no", False), ("1", True), ("True", True)]
)
def test_kcache_variable(value: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a true value of `KCACHE` enables kcache while torch is imported."""
    calls: list[str] = []
    monkeypatch.setattr(kcache, "enable", lambda: calls.append("enable"), raising=False)
    if value is not None:
        monkeypatch.setenv("KCACHE", value)
    autoload.autoload()
    assert calls == ["enable"] * wanted


def test_autoload_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is one warning, in strict mode too: `import torch` must work."""

    def broken() -> bool:
        raise RuntimeError("no store today")

    monkeypatch.setattr(kcache, "enable", broken, raising=False)
    monkeypatch.setenv("KCACHE", "1")
    with pytest.warns(RuntimeWarning, match="no store today"):
        autoload.autoload()


@pytest.mark.slow
@pytest.mark.parametrize(("value", "enabled"), [("0", "False"), ("1", "True")])
def test_enabled_while_torch_is_imported(value: str, enabled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`KCACHE=1` is all that a program needs; without it the import of torch stays free of kcache's seams."""
    pytest.importorskip("torch")
    monkeypatch.setenv("KCACHE", value)
    code = "import sys, torch; print('kcache.hooks' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == enabled
