"""Replacing an attribute of torch or Triton, in every place that holds it, and putting it back.

torch binds many functions by value (`from x import f`), so replacing `x.f` alone is not
seen by modules that are already imported, while modules imported later take whatever
`x.f` is by then. `Patches.replace` therefore rebinds the owner's attribute and every
module global of torch and Triton that is the same object; `undo` restores all of them,
and also finds bindings that were made in between.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kcache.errors import ShapeError

_MISSING = object()


def require(owner: Any, name: str, parameters: Sequence[str] | None = None) -> Any:
    """The attribute `name` of `owner`, checked to take `parameters` by name, in order.

    `parameters` may be a prefix of the real ones. Raises `ShapeError` where it is missing
    or differs; annotations and defaults are not compared, since releases change them
    without meaning.
    """
    found = inspect.getattr_static(owner, name, _MISSING)
    label = f"{getattr(owner, '__name__', owner)}.{name}"
    if found is _MISSING:
        raise ShapeError(f"{label} is missing")
    if parameters is not None:
        function = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        function = inspect.unwrap(function)
        have = [p for p in inspect.signature(function).parameters]
        if have[: len(parameters)] != list(parameters):
            raise ShapeError(f"{label} takes ({', '.join(have)}), expected ({', '.join(parameters)}, ...)")
    return found


class Patches:
    """A set of replacements that is undone as a whole, newest first. Not thread-safe: used under enable's lock."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, new: Any, *, by_value: bool = False) -> Any:
        """Set `owner.name = new`; return the attribute as it was (the raw descriptor).

        With `by_value`, every module global of torch, functorch and Triton that is the old
        object is rebound too.
        """
        own = vars(owner).get(name, _MISSING)
        old = inspect.getattr_static(owner, name)
        setattr(owner, name, new)

        def restore() -> None:
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self._undo.append(restore)
        if by_value:
            _rebind(old, new)
            self._undo.append(lambda: _rebind(new, old))
        return old

    def also(self, undo: Callable[[], None]) -> None:
        """Run `undo` when the patches are undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put every original back. Idempotent."""
        while self._undo:
            self._undo.pop()()


def _rebind(old: Any, new: Any) -> None:
    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.partition(".")[0] not in ("torch", "functorch", "triton"):
            continue
        bindings = vars(module)
        for name in [n for n, value in list(bindings.items()) if value is old]:
            bindings[name] = new
