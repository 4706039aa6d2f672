"""What is on disk, byte for byte. All integers are little-endian.

::

    frame    = "KCB" version codec raw_len stored_len checksum stored
    record   = "KCR" version flags owner created cost raw_size guards label
               segment_count segment* link_count link* seal
    parts    = "KCP" version owner part_count part* seal

    version    = "1"
    codec      = u8                  ; 0 raw, 1 zstd
    raw_len    = u64                 ; bytes after decompression, at most MAX_RAW
    stored_len = u64                 ; bytes in `stored`
    checksum   = 32 bytes            ; BLAKE3["kcache v1 frame"] (digest codec raw_len stored_len stored)
    flags      = u8                  ; 0; others are reserved and refused
    owner      = 16 bytes            ; BLAKE3["kcache v1 owner"] (text(layer) key)
    created    = u64                 ; nanoseconds since the epoch
    cost       = u64                 ; nanoseconds of compiling that a hit saves
    raw_size   = u64                 ; bytes of the whole value
    guards     = text                ; tells the variants of one key apart
    label      = text                ; for people: kernel names, separated by spaces
    text       = u32 length, UTF-8
    segment_count, link_count, part_count = u32
    segment    = u8 0, u64 length, bytes        ; inline
               | u8 1, u64 length, digest       ; kept as a frame under its digest
    link       = text(layer) key                ; another entry that this one names
    part       = text(name) digest readable     ; readable: u8, 1 if the value is kept as a frame
    key, digest = 32 bytes
    seal       = 32 bytes            ; BLAKE3["kcache v1 seal"] (all bytes before it)

A value is the concatenation of its segments. A frame is bound to its digest, a record to its
layer and key: valid bytes in the wrong place are refused. Readers check magic, version,
lengths and cap before they allocate, then the checksum, and only then decompress; whatever is
wrong raises `Damaged` with its reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import zstandard
from blake3 import blake3

from .digest import SIZE, Digest, Key, Part
from .errors import (
    DAMAGE_BAD_CHECKSUM,
    DAMAGE_BAD_MAGIC,
    DAMAGE_TRUNCATED,
    DAMAGE_UNREADABLE,
    DAMAGE_WRONG_KEY,
    Damaged,
)
from .units import GIB

_T = TypeVar("_T")

VERSION = 1
# Version 1: first version.

MAX_RAW = 4 * GIB
"""A frame that claims more is refused before anything is allocated."""
MIN_PIECE = 4096
"""Shorter pieces are not cut out: a row of their own would cost more than sharing saves."""
MAX_INLINE = 512
"""Values up to this size stand in the record itself."""
ZSTD_LEVEL = 3

# These reach the disk: never change or reuse a number without raising VERSION.
CODEC_RAW, CODEC_ZSTD = 0, 1
KIND_INLINE, KIND_BLOB = 0, 1

_FRAME = struct.Struct("<3s c B Q Q 32s")
FRAME_HEADER = _FRAME.size
_HEAD = struct.Struct("<3s c B 16s Q Q Q")
_U32 = struct.Struct("<I")
_SEGMENT = struct.Struct("<B Q")
_VERSION = str(VERSION).encode()


# --- frames ---------------------------------------------------------------------------------


def _checksum(digest: Digest, codec: int, raw_len: int, stored: bytes | memoryview) -> bytes:
    hasher = blake3(derive_key_context="kcache v1 frame")
    hasher.update(digest.raw + struct.pack("<B Q Q", codec, raw_len, len(stored)))
    hasher.update(stored)
    return hasher.digest()


def pack_frame(digest: Digest, raw: bytes, *, compress: bool = True) -> bytes:
    """Frame of `raw`, whose digest is `digest`. Compressed where that makes it smaller."""
    if len(raw) > MAX_RAW:
        raise ValueError(f"{len(raw)} bytes are more than a frame holds")
    codec, stored = CODEC_RAW, raw
    if compress and len(raw) > MAX_INLINE:
        packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw)
        if len(packed) < len(raw):
            codec, stored = CODEC_ZSTD, packed
    checksum = _checksum(digest, codec, len(raw), stored)
    return _FRAME.pack(b"KCB", _VERSION, codec, len(raw), len(stored), checksum) + stored


def unpack_frame(digest: Digest, frame: bytes) -> bytes:
    """The bytes that `pack_frame` was given, or `Damaged`."""
    if len(frame) < FRAME_HEADER:
        raise Damaged(DAMAGE_TRUNCATED, f"frame of {len(frame)} bytes")
    magic, version, codec, raw_len, stored_len, checksum = _FRAME.unpack_from(frame)
    if magic != b"KCB" or version != _VERSION or codec not in (CODEC_RAW, CODEC_ZSTD):
        raise Damaged(DAMAGE_BAD_MAGIC, "frame")
    if stored_len != len(frame) - FRAME_HEADER:
        raise Damaged(DAMAGE_TRUNCATED, f"frame holds {len(frame) - FRAME_HEADER} of {stored_len} bytes")
    if raw_len > MAX_RAW:
        raise Damaged(DAMAGE_UNREADABLE, f"frame claims {raw_len} bytes")
    stored = memoryview(frame)[FRAME_HEADER:]
    if _checksum(digest, codec, raw_len, stored) != checksum:
        raise Damaged(DAMAGE_BAD_CHECKSUM, "frame")
    if codec == CODEC_RAW:
        raw = bytes(stored)
    else:
        try:
            raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_len)
        except zstandard.ZstdError as error:
            raise Damaged(DAMAGE_UNREADABLE, str(error)) from error
    if len(raw) != raw_len:
        raise Damaged(DAMAGE_UNREADABLE, f"frame holds {len(raw)} of {raw_len} bytes")
    return raw


# --- segments -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """A stretch of a value: either its bytes or the digest under which they are kept."""

    length: int
    digest: Digest | None = None
    data: bytes = b""


def split(value: bytes, pieces: Sequence[bytes] = ()) -> list[bytes]:
    """Cut `value` so that each of `pieces` that it contains stands alone; joined, they are `value` again.

    A piece is cut out where it first occurs clear of the others, longest first. Pieces shorter
    than `MIN_PIECE` and pieces that do not occur are left alone.
    """
    spans: list[tuple[int, int]] = []
    for piece in sorted({p for p in pieces if MIN_PIECE <= len(p) < len(value)}, key=lambda p: (-len(p), p)):
        start = value.find(piece)
        while start >= 0 and any(start < end and begin < start + len(piece) for begin, end in spans):
            start = value.find(piece, start + 1)
        if start >= 0:
            spans.append((start, start + len(piece)))
    cuts = sorted({0, len(value), *(edge for span in spans for edge in span)})
    return [value[begin:end] for begin, end in pairwise(cuts)]


# --- records --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One variant of one entry, as it stands in the index."""

    created_ns: int
    cost_ns: int
    raw_size: int
    guards: str
    label: str
    segments: tuple[Segment, ...]
    links: tuple[tuple[str, Key], ...] = ()

    @property
    def digests(self) -> tuple[Digest, ...]:
        """Digests of the frames that this record needs, each once."""
        return tuple(dict.fromkeys(s.digest for s in self.segments if s.digest is not None))


def _owner(layer: str, key: Key) -> bytes:
    return blake3(_text(layer) + key.raw, derive_key_context="kcache v1 owner").digest(16)


def _seal(body: bytes | memoryview) -> bytes:
    return blake3(body, derive_key_context="kcache v1 seal").digest()


def _text(value: str) -> bytes:
    data = value.encode()
    return _U32.pack(len(data)) + data


def pack_record(layer: str, key: Key, record: Record) -> bytes:
    """Bytes of `record`, bound to `layer` and `key`."""
    out = [
        _HEAD.pack(b"KCR", _VERSION, 0, _owner(layer, key), record.created_ns, record.cost_ns, record.raw_size),
        _text(record.guards),
        _text(record.label),
        _U32.pack(len(record.segments)),
    ]
    for segment in record.segments:
        if segment.digest is None:
            out += (_SEGMENT.pack(KIND_INLINE, segment.length), segment.data)
        else:
            out += (_SEGMENT.pack(KIND_BLOB, segment.length), segment.digest.raw)
    out.append(_U32.pack(len(record.links)))
    out += (_text(name) + link.raw for name, link in record.links)
    body = b"".join(out)
    return body + _seal(body)


def unpack_record(layer: str, key: Key, data: bytes) -> Record:
    """The record in `data`, or `Damaged` if it is not whole or belongs elsewhere."""
    reader = _open(data, b"KCR", _HEAD.size)
    _, _, flags, owner, created, cost, raw_size = _HEAD.unpack(reader.take(_HEAD.size))
    if owner != _owner(layer, key):
        raise Damaged(DAMAGE_WRONG_KEY, f"record found under {layer} {key!r}")
    if flags:
        raise Damaged(DAMAGE_UNREADABLE, f"flags {flags:#x}")
    guards, label = reader.text(), reader.text()
    segments = tuple(reader.each(lambda: _segment(reader)))
    links = tuple(reader.each(lambda: (reader.text(), Key(reader.take(SIZE)))))
    reader.end()
    if sum(segment.length for segment in segments) != raw_size:
        raise Damaged(DAMAGE_UNREADABLE, "lengths of segments do not add up")
    return Record(created, cost, raw_size, guards, label, segments, links)


def _segment(reader: _Reader) -> Segment:
    kind, length = _SEGMENT.unpack(reader.take(_SEGMENT.size))
    if kind == KIND_INLINE:
        return Segment(length, None, reader.take(length))
    if kind == KIND_BLOB:
        return Segment(length, Digest(reader.take(SIZE)))
    raise Damaged(DAMAGE_UNREADABLE, f"segment of kind {kind}")


# --- part lists -----------------------------------------------------------------------------

_PARTS = struct.Struct("<3s c 16s")


def pack_parts(layer: str, key: Key, parts: Iterable[Part]) -> bytes:
    """Bytes of a part list, bound to `layer` and `key`. Readable values are kept as frames, not here."""
    rows = [_text(part.name) + part.digest.raw + bytes([bool(part.text)]) for part in parts]
    body = _PARTS.pack(b"KCP", _VERSION, _owner(layer, key)) + _U32.pack(len(rows)) + b"".join(rows)
    return body + _seal(body)


def unpack_parts(layer: str, key: Key, data: bytes) -> list[tuple[str, Digest, bool]]:
    """Name, digest and "its value is kept" of each part, or `Damaged`."""
    reader = _open(data, b"KCP", _PARTS.size)
    if _PARTS.unpack(reader.take(_PARTS.size))[2] != _owner(layer, key):
        raise Damaged(DAMAGE_WRONG_KEY, f"part list found under {layer} {key!r}")
    rows = list(reader.each(lambda: (reader.text(), Digest(reader.take(SIZE)), reader.take(1) != b"\0")))
    reader.end()
    return rows


# --- reading with bounds --------------------------------------------------------------------


def _open(data: bytes, magic: bytes, head: int) -> _Reader:
    """Reader over `data` after magic, version, least length and seal have been checked."""
    if data[:4] != magic + _VERSION:
        raise Damaged(DAMAGE_BAD_MAGIC if len(data) >= 4 else DAMAGE_TRUNCATED, "record")
    if len(data) < head + SIZE:
        raise Damaged(DAMAGE_TRUNCATED, f"{len(data)} bytes")
    body = data[:-SIZE]
    if _seal(body) != data[-SIZE:]:
        raise Damaged(DAMAGE_BAD_CHECKSUM, "record")
    return _Reader(body)


class _Reader:
    """Takes fields off the front of `data`; never past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise Damaged(DAMAGE_TRUNCATED, f"{count} bytes wanted, {len(self._data) - self._at} left")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def text(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError as error:
            raise Damaged(DAMAGE_UNREADABLE, str(error)) from error

    def each(self, read: Callable[[], _T]) -> Iterable[_T]:
        for _ in range(self.number()):
            yield read()

    def end(self) -> None:
        if self._at != len(self._data):
            raise Damaged(DAMAGE_UNREADABLE, f"{len(self._data) - self._at} bytes too many")
