"""What is on disk, byte for byte. All integers are little-endian.

::

    frame    = "KCB" version codec raw_len stored_len checksum stored
    record   = "KCR" version flags key layer_len created cost raw_size guards_len label_len
               segment_count link_count layer guards label segment* inline* link* tag seal
    parts    = "KCP" version key layer_len part_count layer part* seal

    version    = "1"
    codec      = u8                  ; 0 raw, 1 zstd
    raw_len    = u64                 ; bytes after decompression, at most MAX_RAW
    stored_len = u64                 ; bytes in `stored`
    checksum   = 32 bytes            ; BLAKE3["kcache v1 frame"] (stored, digest, all bytes before it)
    flags      = u8                  ; 0; others are reserved and refused
    layer      = layer_len bytes     ; with `key`, the row that this belongs to
    created    = u64                 ; nanoseconds since the epoch
    cost       = u64                 ; nanoseconds of compiling that a hit saves
    raw_size   = u64                 ; bytes of the whole value
    guards     = guards_len bytes    ; UTF-8, tells the variants of one key apart
    label      = label_len bytes     ; UTF-8, for people: kernel names, separated by spaces
    text       = u32 length, UTF-8
    layer_len, guards_len, label_len, segment_count, link_count, part_count = u32
    segment    = kind length digest  ; kind u8: 0 inline, digest all zeros; 1 kept as a frame under its digest
    inline     = length bytes        ; one for each inline segment
    length     = u64
    link       = text(layer) key                ; another entry that this one names
    part       = text(name) digest readable     ; readable: u8, 1 if the value is kept as a frame
    key, digest = 32 bytes
    tag        = 32 bytes            ; BLAKE3, keyed (all bytes before it); zeros without a signing key
    seal       = 32 bytes            ; BLAKE3["kcache v1 seal"] (all bytes before it)

A value is the concatenation of its segments. A frame is bound to its digest, a record to its
layer and key: valid bytes in the wrong place are refused. Readers check magic, version,
lengths and cap before they allocate, then the checksum, and only then decompress; whatever is
wrong raises `Damaged` with its reason.

Whoever reads with a signing key also checks the tag, before anything of the record is parsed.
The tag covers the digests of what the record names, so content is then compared with its
digest as well: a frame's own checksum has no key, and anybody can make one that holds.
"""

from __future__ import annotations

import hmac
import struct
import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import zstandard
from blake3 import blake3

from .digest import SIZE, Digest, Key, Part
from .errors import (
    DAMAGE_BAD_CHECKSUM,
    DAMAGE_BAD_MAGIC,
    DAMAGE_TRUNCATED,
    DAMAGE_UNREADABLE,
    DAMAGE_WRONG_KEY,
    REFUSED_UNTAGGED,
    REFUSED_WRONG_TAG,
    Damaged,
    Refused,
)
from .units import GIB

VERSION = 1
# Version 1: first version.

MAX_RAW = 4 * GIB
"""A frame that claims more is refused before anything is allocated."""
MIN_PIECE = 4096
"""Shorter pieces are not cut out: a row of their own would cost more than sharing saves."""
MAX_INLINE = 512
"""Values up to this size stand in the record itself."""
ZSTD_LEVEL = 3
SMALL = 16 * 1024
"""Content up to this size is compressed at `SMALL_LEVEL`: half the time to read it back, for a quarter more bytes."""
SMALL_LEVEL = -1

# These reach the disk: never change or reuse a number without raising VERSION.
CODEC_RAW, CODEC_ZSTD = 0, 1
KIND_INLINE, KIND_BLOB = 0, 1

_FRAME = struct.Struct("<3s c B Q Q")
FRAME_HEADER = _FRAME.size + SIZE
_HEAD = struct.Struct("<3s c B 32s I Q Q Q I I I I")
_U32 = struct.Struct("<I")
_SEGMENT = struct.Struct("<B Q 32s")
_VERSION = str(VERSION).encode()
_ZEROS = bytes(SIZE)
_FRAME_HASH = blake3(derive_key_context="kcache v1 frame")
_SEAL_HASH = blake3(derive_key_context="kcache v1 seal")


class _Zstd(threading.local):
    """What compresses and decompresses, one for each thread: making one costs more than a small frame does."""

    def __init__(self) -> None:
        self.packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.small_packer = zstandard.ZstdCompressor(level=SMALL_LEVEL)
        self.unpacker = zstandard.ZstdDecompressor()


_zstd = _Zstd()


# --- frames ---------------------------------------------------------------------------------


def _checksum(digest: Digest, head: bytes, stored: bytes | memoryview) -> bytes:
    hasher = _FRAME_HASH.copy()
    if len(stored) <= SMALL:  # one update, since BLAKE3 is quick with whole runs of 1024 bytes
        hasher.update(b"".join((stored, digest.raw, head)))
    else:
        hasher.update(stored)
        hasher.update(digest.raw + head)
    return hasher.digest()


def pack_frame(digest: Digest, raw: bytes, *, compress: bool = True) -> bytes:
    """Frame of `raw`, whose digest is `digest`. Compressed where that makes it smaller."""
    if len(raw) > MAX_RAW:
        raise ValueError(f"{len(raw)} bytes are more than a frame holds")
    codec, stored = CODEC_RAW, raw
    if compress and len(raw) > MAX_INLINE:
        packed = (_zstd.small_packer if len(raw) <= SMALL else _zstd.packer).compress(raw)
        if len(packed) < len(raw):
            codec, stored = CODEC_ZSTD, packed
    head = _FRAME.pack(b"KCB", _VERSION, codec, len(raw), len(stored))
    return b"".join((head, _checksum(digest, head, stored), stored))


def unpack_frame(digest: Digest, frame: bytes, length: int | None = None, *, signed: bool = False) -> bytes:
    """The bytes that `pack_frame` was given, `length` of them if that is known, or `Damaged`.

    `signed`: a tag vouches for `digest`, so the content is compared with it too.
    """
    if len(frame) < FRAME_HEADER:
        raise Damaged(DAMAGE_TRUNCATED, f"frame of {len(frame)} bytes")
    magic, version, codec, raw_len, stored_len = _FRAME.unpack_from(frame)
    if magic != b"KCB" or version != _VERSION or codec not in (CODEC_RAW, CODEC_ZSTD):
        raise Damaged(DAMAGE_BAD_MAGIC, "frame")
    if stored_len != len(frame) - FRAME_HEADER:
        raise Damaged(DAMAGE_TRUNCATED, f"frame holds {len(frame) - FRAME_HEADER} of {stored_len} bytes")
    if raw_len > MAX_RAW or (length is not None and raw_len != length):
        raise Damaged(DAMAGE_UNREADABLE, f"frame claims {raw_len} bytes")
    stored = memoryview(frame)[FRAME_HEADER:]
    if _checksum(digest, frame[: _FRAME.size], stored) != frame[_FRAME.size : FRAME_HEADER]:
        raise Damaged(DAMAGE_BAD_CHECKSUM, "frame")
    if codec == CODEC_RAW:
        raw = bytes(stored)
    else:
        try:
            if zstandard.frame_content_size(stored) > raw_len:  # zstd allocates what its own header says
                raise Damaged(DAMAGE_UNREADABLE, "frame holds more than it says")
            raw = _zstd.unpacker.decompress(stored, max_output_size=raw_len)
        except zstandard.ZstdError as error:
            raise Damaged(DAMAGE_UNREADABLE, str(error)) from error
    if len(raw) != raw_len:
        raise Damaged(DAMAGE_UNREADABLE, f"frame holds {len(raw)} of {raw_len} bytes")
    if signed and Digest.of(raw) != digest:
        raise Refused(REFUSED_WRONG_TAG, "content is not what its digest says")
    return raw


# --- segments -------------------------------------------------------------------------------


class Segment(NamedTuple):
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


class Record(NamedTuple):
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


def _seal(body: bytes | memoryview) -> bytes:
    hasher = _SEAL_HASH.copy()
    hasher.update(body)
    return hasher.digest()


def _tag(body: bytes, signing_key: bytes) -> bytes:
    return blake3(body, key=signing_key).digest()


def _text(value: str) -> bytes:
    data = value.encode()
    return _U32.pack(len(data)) + data


def pack_record(layer: str, key: Key, record: Record, signing_key: bytes | None = None) -> bytes:
    """Bytes of `record`, bound to `layer` and `key`, and tagged with the 32 bytes of `signing_key`."""
    name, guards, label = layer.encode(), record.guards.encode(), record.label.encode()
    times = (record.created_ns, record.cost_ns, record.raw_size)
    counts = (len(guards), len(label), len(record.segments), len(record.links))
    out = [_HEAD.pack(b"KCR", _VERSION, 0, key.raw, len(name), *times, *counts), name, guards, label]
    for segment in record.segments:
        if segment.digest is None:
            out.append(_SEGMENT.pack(KIND_INLINE, segment.length, _ZEROS))
        else:
            out.append(_SEGMENT.pack(KIND_BLOB, segment.length, segment.digest.raw))
    out += (segment.data for segment in record.segments if segment.digest is None)
    out += (_text(linked) + link.raw for linked, link in record.links)
    body = b"".join(out)
    body += _ZEROS if signing_key is None else _tag(body, signing_key)
    return body + _seal(body)


def unpack_record(layer: str, key: Key, data: bytes, signing_key: bytes | None = None) -> Record:
    """The record in `data`, `Damaged` if it is not whole or belongs elsewhere, `Refused` if `signing_key` did not
    make its tag."""
    body = _opened(data, b"KCR", _HEAD.size + SIZE)
    _, _, flags, owner, name, created, cost, raw_size, guards, label, segments, links = _HEAD.unpack_from(body)
    end = len(body) - SIZE
    at_guards = _HEAD.size + name
    at_label = at_guards + guards
    at_segments = at_label + label
    at_inline = at_segments + segments * _SEGMENT.size
    if at_inline > end:
        raise Damaged(DAMAGE_TRUNCATED, f"{at_inline} bytes wanted, {end} there")
    _check_owner(layer, key, body[_HEAD.size : at_guards], owner)
    if flags:
        raise Damaged(DAMAGE_UNREADABLE, f"flags {flags:#x}")
    if signing_key is not None:
        _check_tag(body, signing_key)
    reader = _Reader(body, at_inline, end)
    record = Record(
        created,
        cost,
        raw_size,
        _decoded(body[at_guards:at_label]),
        _decoded(body[at_label:at_segments]),
        tuple([_segment(reader, *fields) for fields in _SEGMENT.iter_unpack(body[at_segments:at_inline])]),
        tuple([(reader.text(), Key(reader.take(SIZE))) for _ in range(links)]) if links else (),
    )
    reader.end()
    if sum([segment.length for segment in record.segments]) != raw_size:
        raise Damaged(DAMAGE_UNREADABLE, "lengths of segments do not add up")
    return record


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Damaged(DAMAGE_UNREADABLE, str(error)) from error


def _check_owner(layer: str, key: Key, name: bytes, owner: bytes) -> None:
    if owner != key.raw or name != layer.encode():
        raise Damaged(DAMAGE_WRONG_KEY, f"found under {layer} {key!r}")


def _check_tag(body: bytes, signing_key: bytes) -> None:
    tag = body[-SIZE:]
    if tag == _ZEROS:
        raise Refused(REFUSED_UNTAGGED)
    if not hmac.compare_digest(tag, _tag(body[:-SIZE], signing_key)):
        raise Refused(REFUSED_WRONG_TAG)


def _segment(reader: _Reader, kind: int, length: int, digest: bytes) -> Segment:
    if kind == KIND_BLOB:
        return Segment(length, Digest(digest))
    if kind == KIND_INLINE:
        return Segment(length, None, reader.take(length))
    raise Damaged(DAMAGE_UNREADABLE, f"segment of kind {kind}")


# --- part lists -----------------------------------------------------------------------------

_PARTS = struct.Struct("<3s c 32s I I")


def pack_parts(layer: str, key: Key, parts: Iterable[Part]) -> bytes:
    """Bytes of a part list, bound to `layer` and `key`. Readable values are kept as frames, not here."""
    rows = [_text(part.name) + part.digest.raw + bytes([bool(part.text)]) for part in parts]
    name = layer.encode()
    body = _PARTS.pack(b"KCP", _VERSION, key.raw, len(name), len(rows)) + name + b"".join(rows)
    return body + _seal(body)


def unpack_parts(layer: str, key: Key, data: bytes) -> list[tuple[str, Digest, bool]]:
    """Name, digest and "its value is kept" of each part, or `Damaged`."""
    body = _opened(data, b"KCP", _PARTS.size)
    _, _, owner, name, count = _PARTS.unpack_from(body)
    reader = _Reader(body, _PARTS.size, len(body))
    _check_owner(layer, key, reader.take(name), owner)
    rows = [(reader.text(), Digest(reader.take(SIZE)), reader.take(1) != b"\0") for _ in range(count)]
    reader.end()
    return rows


# --- reading with bounds --------------------------------------------------------------------


def _opened(data: bytes, magic: bytes, head: int) -> bytes:
    """`data` without its seal, after magic, version, least length and seal have been checked."""
    if data[:4] != magic + _VERSION:
        raise Damaged(DAMAGE_BAD_MAGIC if len(data) >= 4 else DAMAGE_TRUNCATED, "record")
    if len(data) < head + SIZE:
        raise Damaged(DAMAGE_TRUNCATED, f"{len(data)} bytes")
    body = data[:-SIZE]
    if _seal(body) != data[-SIZE:]:
        raise Damaged(DAMAGE_BAD_CHECKSUM, "record")
    return body


class _Reader:
    """Takes fields out of `data`, from `at` on; never past `end`."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    def take(self, count: int) -> bytes:
        start = self._at
        self._at = end = start + count
        if end > self._end:
            raise Damaged(DAMAGE_TRUNCATED, f"{count} bytes wanted, {self._end - start} left")
        return self._data[start:end]

    def text(self) -> str:
        return _decoded(self.take(int.from_bytes(self.take(4), "little")))

    def end(self) -> None:
        if self._at != self._end:
            raise Damaged(DAMAGE_UNREADABLE, f"{self._end - self._at} bytes too many")
