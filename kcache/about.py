"""What stands in the store under a key, and where a kernel stands in it, as objects that print well.

An `Entry` is found by its key or the first digits of one; a `Kernel` by its name and compared
with the stored entry that holds the nearest kernel of that name. Both only read the store.
"""

from __future__ import annotations

import datetime
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .counters import LAYERS
from .diff import Difference, differences, short
from .digest import SIZE, Digest, Key, Part
from .errors import Damaged, NotFound, Opaque
from .listing import Node, load
from .rows import VARIANT, parse_row
from .units import format_seconds, format_size
from .why import compared

if TYPE_CHECKING:
    from .counters import Stats
    from .entry import Record
    from .store import Store

LEAST_DIGITS = 4
LISTED = 8
"""Entries that are named where the digits given fit more than one."""
WIDTH = 100
"""Characters of a line of a kernel's parts."""


@dataclass(frozen=True)
class Entry:
    """One entry: its variants, what it names, the parts that its key is made of, and the nearest other entry."""

    layer: str
    key: Key
    variants: tuple[Record, ...]
    parts: tuple[Part, ...]
    """Without their texts."""
    against: Key | None = None
    differs: tuple[Difference, ...] = ()
    damage: str = ""
    """What is wrong with the part list, if it cannot be read."""

    @property
    def label(self) -> str:
        """Names of the kernels in it."""
        return " ".join(dict.fromkeys(each.label for each in self.variants if each.label))

    def __str__(self) -> str:
        lines = [f"{self.layer} {self.key.hex}", *([f"  holds: {self.label}"] if self.label else [])]
        for each in self.variants:
            moment = datetime.datetime.fromtimestamp(each.created_ns / 1e9).strftime("%Y-%m-%d %H:%M")
            cost = f", {format_seconds(each.cost_ns / 1e9)} to compile" if each.cost_ns else ""
            lines.append(f"  stored {moment}: {format_size(each.raw_size)}{cost}")
            if each.guards:
                lines.append(f"    under guards: {each.guards}")
            lines += [f"    names: {layer} {key.short}" for layer, key in each.links]
        if self.damage:
            lines.append(f"  part list: {self.damage}")
        elif not self.parts:
            lines.append("  kept without a part list")
        else:
            lines.append("  key made of:")
        lines += [f"    {part.digest.short} {part.name}" for part in self.parts]
        return "\n".join(
            [*lines, *_nearest(f"{self.layer} {self.against.short}" if self.against else "", self.differs)]
        )

    __repr__ = __str__


@dataclass(frozen=True)
class Kernel:
    """What a kernel or a function depends on, and what differs from the nearest stored kernel of its name."""

    name: str
    digest: Digest
    listing: bytes = field(repr=False)
    """Its parts as `kcache.listing` prints them."""
    opaque: tuple[Opaque, ...] = ()
    stored: tuple[tuple[str, Key], ...] = ()
    """The newest entries that hold exactly this one."""
    against: tuple[str, Key] | None = None
    differs: tuple[Difference, ...] = ()
    where: str = ""
    """The store that was looked into, or why none was."""

    def __str__(self) -> str:
        lines = [f"{self.name} {self.digest.short}", *_tree(load(self.listing) or ())]
        lines += [f"  cannot be followed, so it is not cached: {each}" for each in self.opaque]
        if self.stored:
            return "\n".join([*lines, "stored as it is now: " + ", ".join(f"{x} {k.short}" for x, k in self.stored)])
        if self.against is None:
            return "\n".join([*lines, self.where])
        return "\n".join([*lines, *_nearest(f"{self.against[0]} {self.against[1].short}", self.differs)])

    __repr__ = __str__


def find(store: Store, start: str) -> list[tuple[str, Key]]:
    """Entries whose key begins with the hexadecimal digits `start`, at most `LISTED` and one more.

    A key as torch spells it, with a letter before its 64 digits, is taken too. Raises
    `NotFound` where `start` can be no key.
    """
    digits = start.strip().lower()
    digits = digits[1:] if len(digits) == 2 * SIZE + 1 else digits
    if not (LEAST_DIGITS <= len(digits) <= 2 * SIZE and set(digits) <= set(string.hexdigits)):
        raise NotFound(f"{start!r} is no key: give at least {LEAST_DIGITS} of its 64 hexadecimal digits")
    whole = bytes.fromhex(digits[: len(digits) // 2 * 2])
    found: dict[tuple[str, Key], None] = {}
    with store.transaction() as txn:
        for layer, _ in LAYERS:
            for row, _ in txn.rows("index", layer.encode() + b"\0" + whole):
                layer, key = parse_row(row[:-VARIANT])
                if key.hex.startswith(digits):
                    found[layer, key] = None
                if len(found) > LISTED:
                    return list(found)
    return list(found)


def entry(store: Store, stats: Stats, start: str) -> Entry:
    """The one entry whose key begins with `start`. Raises `NotFound` if there is none or more than one."""
    found = find(store, start)
    if not found:
        raise NotFound(f"{store.home} holds no entry whose key begins with {start}")
    if len(found) > 1:
        listed = ", ".join(f"{layer} {key.hex[:16]}" for layer, key in found[:LISTED])
        more = " and more" if len(found) > LISTED else ""
        raise NotFound(f"several keys begin with {start}: {listed}{more}; give more digits")
    layer, key = found[0]
    variants = tuple(record for _, record in store.variants(layer, key))
    try:
        parts = store.parts(layer, key)
    except Damaged as damage:
        return Entry(layer, key, variants, (), damage=str(damage))
    against, differs = compared(store, stats, layer, key, parts) if parts else (None, ())
    return Entry(layer, key, variants, tuple(Part(p.name, p.digest) for p in parts), against, differs)


def beside(store: Store, stats: Stats, kernel: Kernel) -> Kernel:
    """`kernel` with the entries that hold it, or else with the nearest one that holds another of its name."""
    mine = Part(f"kernel 0 {kernel.name}", kernel.digest, kernel.listing)
    held = list(_held(store, stats, mine))
    if stored := tuple((layer, key) for layer, key, part in held if part.digest == kernel.digest):
        return replace(kernel, stored=stored)
    for layer, key, part in held:
        try:
            theirs = store.with_text(part)
        except Damaged as damage:
            stats.count(layer, "damaged", reason=f"parts: {damage.reason}")
            continue
        differs = differences([Part(mine.name, theirs.digest, theirs.text)], [mine])
        return replace(kernel, against=(layer, key), differs=tuple(differs))
    return replace(kernel, where=f"no kernel of this name in {store.home}")


def _held(store: Store, stats: Stats, mine: Part) -> Iterator[tuple[str, Key, Part]]:
    """Entries with a kernel or function of the same name, the newest of each layer first, and that part of each."""
    wanted = mine.name.split(" ", 2)[2]
    for layer, _ in LAYERS:
        for key in store.like(layer, [mine]):
            try:
                parts = store.part_names(layer, key)
            except Damaged as damage:
                stats.count(layer, "damaged", reason=f"parts: {damage.reason}")
                continue
            for part in parts:
                words = part.name.split(" ", 2)
                if words[0] in ("kernel", "function") and words[-1] == wanted:
                    yield layer, key, part


def _tree(nodes: Sequence[Node]) -> Iterator[str]:
    """What a fingerprint is made of, a line each, indented by depth; what was listed already is not listed again."""
    waiting, seen = [(number, 0) for number in reversed(nodes[0].links)] if nodes else [], set()
    while waiting:
        number, depth = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        node = nodes[number]
        value = f": {node.text}" if not node.links and "\n" not in node.text else ""
        line = f"{'  ' * (depth + 1)}{short(node.title)}{value}"
        yield line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
        waiting += [(link, depth + 1) for link in reversed(node.links)]


def _nearest(name: str, differs: Sequence[Difference]) -> list[str]:
    return [f"nearest other entry: {name}", *(f"  {each}" for each in differs)] if name else []
