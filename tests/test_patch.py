"""Replacing attributes: every place that holds one is found, and every one is put back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from kcache.errors import ShapeError
from kcache.hooks.patch import Patches, require


def original(a: int, b: int = 0) -> str:
    return "original"


class Owner:
    """Holds one attribute of each kind."""

    value = 1

    @staticmethod
    def static(key: str) -> str:
        return "static"

    @classmethod
    def klass(cls, key: str) -> str:
        return "class"

    def method(self, key: str) -> str:
        return "method"


class Inheriting(Owner):
    """Has no attribute of its own."""


@pytest.fixture
def modules() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    """Two modules below torch's name and one that is the user's, all bound to `original`."""
    names = ("torch._kcache_test_a", "torch._kcache_test_b", "someone_else")
    made = tuple(ModuleType(name) for name in names)
    for module in made:
        module.name = original  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
    yield made  # type: ignore[misc]
    for name in names:
        del sys.modules[name]


def raw(owner: Any, *names: str) -> list[Any]:
    return [inspect.getattr_static(owner, name) for name in names]


def test_undo_puts_the_raw_attributes_back() -> None:
    """Static, class and plain methods and values come back as the very objects they were, newest first."""
    names = ("value", "static", "klass", "method")
    before, patches = raw(Owner, *names), Patches()
    for new in (2, 3):
        patches.replace(Owner, "value", new)
    assert patches.replace(Owner, "static", staticmethod(lambda key: "new")) is before[1]
    patches.replace(Owner, "klass", classmethod(lambda cls, key: "new"))
    patches.replace(Owner, "method", lambda self, key: "new")
    assert (Owner.value, Owner.static(""), Owner.klass(""), Owner().method("")) == (3, "new", "new", "new")
    patches.undo()
    assert all(a is b for a, b in zip(raw(Owner, *names), before))
    patches.undo()
    assert all(a is b for a, b in zip(raw(Owner, *names), before))


def test_an_inherited_attribute_is_removed_again() -> None:
    """Replacing what a class inherits leaves nothing of its own behind, and never touches the parent."""
    patches = Patches()
    patches.replace(Inheriting, "method", lambda self, key: "new")
    assert Owner().method("") == "method"
    assert Inheriting().method("") == "new"
    patches.undo()
    assert "method" not in vars(Inheriting)


def test_by_value_finds_every_binding_below_torch(modules: tuple[ModuleType, ...]) -> None:
    """Modules that imported the function by value see the new one, the user's own module does not."""
    first, second, foreign = modules
    second.other = original  # type: ignore[attr-defined]
    patches = Patches()

    def new(a: int, b: int = 0) -> str:
        return "new"

    patches.replace(first, "name", new, by_value=True)
    assert first.name is new and second.name is new and second.other is new
    assert foreign.name is original
    patches.undo()
    assert first.name is original and second.name is original and second.other is original


def test_bindings_made_in_between_are_put_back_too(modules: tuple[ModuleType, ...]) -> None:
    """A module that took the new function by value while it was in place gets the original back."""
    first, second, _ = modules
    patches = Patches()

    def new(a: int, b: int = 0) -> str:
        return "new"

    patches.replace(first, "name", new, by_value=True)
    second.later = first.name  # type: ignore[attr-defined]
    patches.undo()
    assert second.later is original


def test_one_failing_undo_does_not_keep_the_others_from_running() -> None:
    """What can be put back is put back, and the failure is seen."""
    patches, done = Patches(), []

    def fails() -> None:
        raise RuntimeError("no")

    patches.also(lambda: done.append(1))
    patches.also(fails)
    with pytest.raises(RuntimeError):
        patches.undo()
    patches.undo()
    assert done == [1]


@pytest.mark.parametrize("name", ["static", "klass", "method"])
def test_require_takes_a_prefix_of_the_parameters(name: str) -> None:
    """A release may add parameters behind those that a seam knows, and no others."""
    prefix = {"static": (), "klass": ("cls",), "method": ("self",)}[name]
    assert require(Owner, name) is inspect.getattr_static(Owner, name)
    require(Owner, name, prefix)
    require(Owner, name, (*prefix, "key"))
    for wrong in ((*prefix, "digest"), (*prefix, "key", "more"), ("key", "key")):
        with pytest.raises(ShapeError, match=f"Owner.{name} takes"):
            require(Owner, name, wrong)


def test_require_names_what_is_missing() -> None:
    """The message says which attribute of which owner is missing."""
    with pytest.raises(ShapeError, match=r"Owner\.absent is missing"):
        require(Owner, "absent")
