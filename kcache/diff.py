"""The difference of two part lists, down to the helper or the constant that differs.

Pure functions of parts; a part without its text differs by name alone. Parts are matched by
name. Two fingerprints are walked in step, breadth first, so that the shortest chain to each
difference is the one that is named.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .digest import Part
from .listing import Node, Setting, load, read_fields, read_settings

SHOWN = 60
"""Characters of a value that are shown."""
LOADS = frozenset({"LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT"})
"""Instructions of a function's listing that name a literal."""
COMPARED = 400
"""Lines beyond which two texts are not aligned: `difflib` takes quadratic time."""


class Difference(NamedTuple):
    """Where two keys differ: a chain from the part inward, and the value on each side (empty: it has none)."""

    chain: tuple[str, ...]
    before: str = ""
    after: str = ""
    only: str = ""
    """`before` or `after`: the one side that has the part at all."""

    def __str__(self) -> str:
        place = " → ".join(self.chain)
        if self.only:
            return f"{place}: {'only' if self.only == 'before' else 'not'} in the nearest entry"
        if not self.before and not self.after:
            return f"{place} differs"
        return f"{place}: {self.before or '(nothing)'} → {self.after or '(nothing)'}"


def differences(before: Iterable[Part], after: Iterable[Part]) -> list[Difference]:
    """What differs between two part lists, in the order of `after`, then what only `before` has."""
    old, new = {part.name: part for part in before}, {part.name: part for part in after}
    found: list[Difference] = []
    for name, part in new.items():
        if name not in old:
            found.append(Difference((short(name),), only="after"))
        elif old[name].digest != part.digest:
            found += inside(old[name], part)
    return found + [Difference((short(name),), only="before") for name in old if name not in new]


def inside(old: Part, new: Part) -> list[Difference]:
    """What differs inside two parts of one name."""
    head = short(new.name)
    if not old.text or not new.text:
        return [Difference((head,))]
    before, after = load(old.text), load(new.text)
    if before is not None and after is not None:
        return trees(head, before, after) or [Difference((head,))]
    return lines(head, old.text.decode(errors="replace"), new.text.decode(errors="replace"))


def trees(head: str, before: Sequence[Node], after: Sequence[Node]) -> list[Difference]:
    """What differs between two fingerprints; `head` begins each chain."""
    found: list[Difference] = []
    queue: deque[tuple[int, int, tuple[str, ...]]] = deque([(0, 0, (head,))])
    seen = {(0, 0)}
    while queue:
        one, other, chain = queue.popleft()
        old, new = before[one], after[other]
        if old.text != new.text:
            found.append(_own(chain, old, new))
        for left, right in _pairs(old, new, before, after):
            if (left, right) not in seen:
                seen.add((left, right))
                queue.append((left, right, _longer(chain, after[right].title)))
    return found


def _own(chain: tuple[str, ...], old: Node, new: Node) -> Difference:
    if new.title.startswith("function ") and _code(old) != _code(new):
        # a plain function stands as bytecode, of which only the literals say something to a reader
        literals = _literals(_code(old), _code(new))
        return Difference((*chain, "literal"), *literals) if literals else Difference((*chain, "code"))
    return Difference(chain, *_first(old.text.split("\n"), new.text.split("\n")))


def _literals(old: Sequence[str], new: Sequence[str]) -> tuple[str, str] | None:
    """The first literal that differs, where nothing but literals does."""
    pairs = [(a.split(None, 1), b.split(None, 1)) for a, b in zip(old, new, strict=False) if a != b]
    if len(old) != len(new) or not all(len(row) == 2 and row[0] in LOADS for pair in pairs for row in pair):
        return None
    (_, before), (_, after) = pairs[0]
    return _cut(before, 0), f"{_cut(after, 0)} (and {len(pairs) - 1} more)" if len(pairs) > 1 else _cut(after, 0)


def _code(node: Node) -> list[str]:
    """The lines of a function that are neither a name's meaning nor a default."""
    return [row for row in node.text.split("\n") if not row.startswith(("default ", "$")) or " = " not in row]


def _pairs(old: Node, new: Node, before: Sequence[Node], after: Sequence[Node]) -> list[tuple[int, int]]:
    """What the two refer to, matched: in order where their own content is equal, else by title."""
    if old.text == new.text:
        return list(zip(old.links, new.links, strict=False))
    titles = {before[link].title: link for link in old.links}
    return [(titles[after[link].title], link) for link in new.links if after[link].title in titles]


def _longer(chain: tuple[str, ...], title: str) -> tuple[str, ...]:
    step = short(title)
    return chain if step == chain[-1] else (*chain, step)


def short(title: str) -> str:
    """A title without its module, its position and its count: `helper _scale` for `helper pkg.mod._scale (2)`."""
    words = title.split(" ")
    if len(words) > 2 and words[-1].startswith("(") and words[-1].endswith(")"):
        words.pop()
    if len(words) > 2 and words[0] in ("kernel", "function", "class") and words[1].isdigit():
        words.pop(1)
    if len(words) > 1 and "::" not in title:
        words[-1] = words[-1].rpartition(".")[2]
    return " ".join(words)


def lines(head: str, before: str, after: str) -> list[Difference]:
    """What differs between two texts: settings (`name digest value` a line) by name, others by their first line."""
    if before == after:  # the text shows less than the digest stands for
        return [Difference((head,))]
    old, new = read_settings(before), read_settings(after)
    if old is None or new is None:
        return [Difference((head,), *_first(before.split("\n"), after.split("\n")))]
    names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    return [each for name in names for each in _setting((head, name), old.get(name), new.get(name))]


def _setting(chain: tuple[str, ...], old: Setting | None, new: Setting | None) -> list[Difference]:
    if old is None or new is None:
        return [Difference(chain, _spoken(old), _spoken(new))]
    before, after = read_fields(old.value), read_fields(new.value)
    if before is None or after is None or before == after:
        return [Difference(chain) if old.value == new.value else Difference(chain, old.value, new.value)]
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    return [Difference((*chain, name), before.get(name, ""), after.get(name, "")) for name in names]


def _spoken(setting: Setting | None) -> str:
    if setting is None:
        return ""
    return ", ".join([f"{name} {value}" for name, value in (read_fields(setting.value) or {}).items()]) or setting.value


def _first(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """The first lines that differ, and how many more do."""
    if max(len(old), len(new)) > COMPARED:
        at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        return _shown(old[at : at + 1], new[at : at + 1])
    changed = [op for op in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if op[0] != "equal"]
    _, a, b, c, d = changed[0]
    more = sum(max(y - x, w - z) for _, x, y, z, w in changed) - 1
    before, after = _shown(old[a:b], new[c:d])
    return before, f"{after} (and {more} more {'lines' if more > 1 else 'line'})" if more else after


def _shown(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """The first line of each side, cut around the place where they begin to differ."""
    before, after = (rows[0].strip() if rows else "" for rows in (old, new))
    pairs = enumerate(zip(before, after, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(before), len(after)))
    return _cut(before, at), _cut(after, at)


def _cut(text: str, at: int) -> str:
    if len(text) <= SHOWN:
        return text
    start = min(max(0, at - SHOWN // 2), len(text) - SHOWN)
    end = start + SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
