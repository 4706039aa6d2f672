"""An entry on its way to the store, and how it is taken apart: a record and the content it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .digest import Digest, Key, Part
from .entry import MAX_INLINE, Record, Segment, pack_record, split


@dataclass(frozen=True)
class Draft:
    """An entry to be written. `pieces` are byte strings inside `value` that other entries may share."""

    layer: str
    key: Key
    value: bytes
    guards: str = ""
    parts: Sequence[Part] = ()
    links: Sequence[tuple[str, Key]] = ()
    label: str = ""
    cost_ns: int = 0
    pieces: Sequence[bytes] = ()
    created_ns: int = 0

    @property
    def size(self) -> int:
        """Bytes that it holds in memory."""
        return len(self.value) + sum(len(part.text) for part in self.parts)


@dataclass(frozen=True)
class Packed:
    """A draft taken apart. `contents` are what its record names, `texts` what its part list names."""

    draft: Draft
    record: bytes
    contents: dict[Digest, bytes]
    texts: dict[Digest, bytes]


def pack(draft: Draft, signing_key: bytes | None = None) -> Packed:
    """Cut the value into segments: small ones stand in the record, the others are kept under their digests."""
    segments: list[Segment] = []
    contents: dict[Digest, bytes] = {}
    for data in split(draft.value, draft.pieces):
        if len(data) <= MAX_INLINE:
            segments.append(Segment(len(data), None, data))
        else:
            digest = Digest.of(data)
            contents[digest] = data
            segments.append(Segment(len(data), digest))
    record = Record(
        created_ns=draft.created_ns,
        cost_ns=draft.cost_ns,
        raw_size=len(draft.value),
        guards=draft.guards,
        label=draft.label,
        segments=tuple(segments),
        links=tuple(draft.links),
    )
    texts = {part.digest: part.text for part in draft.parts if part.text}
    return Packed(draft, pack_record(draft.layer, draft.key, record, signing_key), contents, texts)
