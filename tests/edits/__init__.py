"""Tables of edits: what must change a key, and what must not.

A row is a program before and after one edit. Its kind says what the second run must do:

* `SEMANTIC`: the program means something else. The key differs, and a second run on the
  first one's store computes the new value.
* `NEUTRAL`: it means the same. The key is equal, and the second run is a hit in every layer.
* `REPAIR`: the first version fails or computes nonsense, the second does not. The key
  differs, so nothing that was kept of the fault can come back.
* `OPAQUE`: something that a key would need cannot be followed. No key is made, and the
  reason names it.

`kernels`, `launchers` and `functions` are rows about one object and its fingerprint;
`operators`, `graphs` and `launches` are whole programs, with the key that AOTAutograd's
layer makes for them, and their value.
"""

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
REPAIR = "repair"
OPAQUE = "opaque"
KINDS = (SEMANTIC, NEUTRAL, REPAIR, OPAQUE)

Files = Mapping[str, "str | None"]


@dataclass(frozen=True)
class Row:
    """One program before and after an edit. `after` is laid over `before`; None removes a file."""

    name: str
    kind: str
    before: Files
    after: Files
    target: str = "kern:kern"
    device: str = "cpu"
    """Where a whole program runs; `cuda` for those that launch kernels."""

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
    """The object `module:name` of a version, or the module if there is no name; imported anew."""
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
    for step in filter(None, attribute.split(".")):
        value = getattr(value, step)
    return value


def rows() -> list[Row]:
    """All rows about one object."""
    from tests.edits import found, functions, kernels, launchers

    return [*kernels.ROWS, *launchers.ROWS, *functions.ROWS, *found.ROWS]


def programs() -> list[Row]:
    """All rows that are whole programs."""
    from tests.edits import graphs, launches, operators

    return [*operators.ROWS, *graphs.ROWS, *launches.ROWS]
