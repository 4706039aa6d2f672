"""A fingerprint's parts as one text that is kept beside a key, and the tree that is read back from it.

The text is a JSON list of `[title, content]`, the root first and the links between parts last:
line `n` of that last part lists, for part `n`, the numbers of the parts that `@0`, `@1`, …
in its content stand for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from .digest import Part


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
