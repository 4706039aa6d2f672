"""Tables of edits: what must change a fingerprint, and what must not."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

SEMANTIC = "semantic"
NEUTRAL = "neutral"
OPAQUE = "opaque"
"""The name cannot be followed: both versions must say so."""

Files = Mapping[str, "str | None"]


@dataclass(frozen=True)
class Row:
    """One program before and after an edit. `after` is laid over `before`; None removes a file."""

    name: str
    kind: str
    before: Files
    after: Files
    target: str = "kern:kern"

    def version(self, edited: bool) -> dict[str, str]:
        """The files of one version."""
        files = {**self.before, **self.after} if edited else dict(self.before)
        return {name: dedent(text) for name, text in files.items() if text is not None}


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write a version into `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(folder: Path, names: Iterable[str], target: str) -> Any:
    """The object `module:name` of a version, imported anew."""
    for name in {n.partition("/")[0].removesuffix(".py") for n in names}:
        for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
            del sys.modules[loaded]
    module, _, attribute = target.partition(":")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        linecache.checkcache()
        value: Any = importlib.import_module(module)
    finally:
        sys.path.remove(str(folder))
    for step in attribute.split("."):
        value = getattr(value, step)
    return value


def rows() -> list[Row]:
    """All rows of all tables."""
    from tests.edits import found, functions, kernels, launchers

    return [*kernels.ROWS, *launchers.ROWS, *functions.ROWS, *found.ROWS]
