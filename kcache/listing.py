"""The texts that are kept beside a key and read back for comparing: a fingerprint's parts, and tables of settings.

A fingerprint is a JSON list of `[title, content]`, the root first and the links between parts last:
line `n` of that last part lists, for part `n`, the numbers of the parts that `@0`, `@1`, …
in its content stand for.

Settings are a line each: `name digest value`, the value as far as a person wants to see it: by
`repr`, by its type's name, or as a JSON object of fields that are compared one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .digest import SIZE, Digest, Part

VALUE = 80
"""Characters of a value's `repr` that are kept."""


BESIDE = "linked "
"""First word of the parts that are kept with an entry and are not in its key: the linked text of a kernel, which holds
comments and where its functions came from."""


def linked(name: str, text: str) -> Part:
    """The part that keeps the linked text of the kernel `name` with an entry."""
    return Part.of(f"{BESIDE}{name}", text, readable=True)


def keyed(parts: Iterable[Part]) -> list[Part]:
    """Those of an entry's parts that are in its key."""
    return [part for part in parts if not part.name.startswith(BESIDE)]


class Node(NamedTuple):
    """One thing followed: its title, its own content, and the numbers of what it refers to."""

    title: str
    text: str
    links: tuple[int, ...]


def dump(parts: Iterable[Part]) -> bytes:
    """The parts of a fingerprint as one text."""
    return json.dumps([[part.name, part.text.decode(errors="replace")] for part in parts]).encode()


def load(data: bytes) -> list[Node] | None:
    """The nodes of a text that `dump` made, the root first; None for any other text."""
    try:
        rows = json.loads(data)
        links = [tuple(int(number) for number in line.split()) for line in rows[-1][1].split("\n")]
        nodes = [Node(str(title), str(text), found) for (title, text), found in zip(rows, links, strict=False)]
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    sound = bool(nodes) and all(0 <= link < len(nodes) for node in nodes for link in node.links)
    return nodes if sound else None


class Setting(NamedTuple):
    """One line of a table of settings. The digest stands for all of the value."""

    name: str
    digest: str
    value: str


def settings(rows: Iterable[tuple[str, Digest, str]]) -> str:
    """A table of settings as text."""
    return "\n".join(f"{name} {digest.hex} {value}" for name, digest, value in rows)


def read_settings(text: str) -> dict[str, Setting] | None:
    """The settings of a text that `settings` made, by name; None for any other text."""
    found: dict[str, Setting] = {}
    for line in filter(None, text.split("\n")):
        fields = line.split(" ", 2)
        if len(fields) != 3 or len(fields[1]) != 2 * SIZE:
            return None
        found[fields[0]] = Setting(*fields)
    return found


def shown(value: Any) -> str:
    """`value` as a setting shows it: plain values and flat tuples of them by `repr`, everything else by its type."""
    return repr(value)[:VALUE] if plain(value) else type(value).__name__


def plain(value: Any) -> bool:
    """Whether `value` is a scalar, None, text, or a tuple or list of those."""
    scalar = (bool, int, float, str, type(None))
    return type(value) in scalar or (type(value) in (tuple, list) and all(type(each) in scalar for each in value))


def fields(values: Mapping[str, Any]) -> str:
    """A setting's value as fields."""
    return json.dumps({name: str(value) for name, value in values.items()})


def read_fields(text: str) -> dict[str, str] | None:
    """Inverse of `fields`; None for any other value."""
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()) else None
