"""Two hashes, two types: what was asked for (`Key`) and what the bytes are (`Digest`).

Both are BLAKE3, 32 bytes, under different derive-key contexts, so neither can be
mistaken for the other. A key is a fold over named parts; every name and value is
length-prefixed, so no two lists of parts share an encoding:

    key   = BLAKE3[context] ( part* )
    part  = u32 length, name (UTF-8), 32 bytes digest of the value

The list of parts is stored beside the entry: two keys are explained by the parts in
which they differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

FORMAT = "kcache v1"
"""Names the key format in every key. A change of it makes every older entry unreachable."""

_KEY_CONTEXT = f"{FORMAT} key"
_DIGEST_CONTEXT = f"{FORMAT} content"
SIZE = 32
"""Bytes in a key or digest."""


class _Hash:
    __slots__ = ("raw",)
    _prefix = "hash"

    def __init__(self, raw: bytes) -> None:
        if len(raw) != SIZE:
            raise ValueError(f"{type(self).__name__} takes {SIZE} bytes, got {len(raw)}")
        self.raw = raw

    @property
    def hex(self) -> str:
        """64 hexadecimal digits."""
        return self.raw.hex()

    @property
    def short(self) -> str:
        """The first 12 hexadecimal digits, for people."""
        return self.raw[:6].hex()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.raw == self.raw  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self._prefix, self.raw))

    def __repr__(self) -> str:
        return f"{self._prefix}:{self.short}"


class Digest(_Hash):
    """Hash of content: what the bytes are."""

    __slots__ = ()
    _prefix = "blob"

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        """Digest of `data`."""
        return cls(blake3(data, derive_key_context=_DIGEST_CONTEXT).digest())


@dataclass(frozen=True)
class Part:
    """One named ingredient of a key.

    `text` is the value itself where a person would want to read it in a diff (a canonical
    graph, a linked kernel); it is stored as a blob under `digest`. Otherwise empty.
    """

    name: str
    digest: Digest
    text: bytes = b""

    @classmethod
    def of(cls, name: str, value: bytes | str, *, readable: bool = False) -> Part:
        """Part called `name` holding `value`; `readable` keeps the value for diffs."""
        data = value.encode() if isinstance(value, str) else value
        return cls(name, Digest.of(data), data if readable else b"")


class Key(_Hash):
    """Hash of a complete description of what is asked for."""

    __slots__ = ()
    _prefix = "key"

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Key:
        """Fold `parts`, in order, into a key. The format itself is the first part."""
        hasher = blake3(derive_key_context=_KEY_CONTEXT)
        for part in parts:
            name = part.name.encode()
            hasher.update(struct.pack("<I", len(name)) + name + part.digest.raw)
        return cls(hasher.digest())
