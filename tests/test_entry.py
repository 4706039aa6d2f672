"""The bytes on disk: what was packed comes back, and everything else is `Damaged` with a reason."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcache import entry, errors
from kcache.digest import Digest, Key, Part
from kcache.entry import Record, Segment, pack_frame, pack_parts, pack_record, split, unpack_frame, unpack_parts
from kcache.entry import unpack_record as unpack
from kcache.errors import Damaged, Refused
from kcache.units import MIB

GOLDEN = Path(__file__).parent / "golden" / "entry-v1.bin"
KEY = Key(bytes(range(32)))
RECORD = Record(
    created_ns=1_700_000_000_000_000_000,
    cost_ns=2_500_000_000,
    raw_size=9 + 5000,
    guards="s0 < 128",
    label="add_kernel mul_kernel",
    segments=(Segment(9, None, b"inline me"), Segment(5000, Digest.of(b"a" * 5000))),
    links=(("fx", Key(b"\x07" * 32)),),
)


def test_golden_bytes_decode_for_ever():
    """The file holds a raw frame of b"kcache" * 100, then RECORD under layer aot. Never regenerate it."""
    data = GOLDEN.read_bytes()
    raw = b"kcache" * 100
    frame, record = data[: entry.FRAME_HEADER + 600], data[entry.FRAME_HEADER + 600 :]
    assert unpack_frame(Digest.of(raw), frame) == raw
    assert unpack("aot", KEY, record) == RECORD
    assert pack_frame(Digest.of(raw), raw, compress=False) == frame
    assert pack_record("aot", KEY, RECORD) == record


@pytest.mark.parametrize("raw", [b"", b"x", b"a" * 100_000, os.urandom(2000)], ids=["empty", "one", "long", "random"])
def test_frame_round_trip(raw):
    frame = pack_frame(Digest.of(raw), raw)
    assert unpack_frame(Digest.of(raw), frame) == raw
    assert len(frame) <= len(raw) + entry.FRAME_HEADER


def test_zstd_is_used_only_where_it_helps():
    noise, text = os.urandom(4000), b"text " * 800
    assert pack_frame(Digest.of(noise), noise)[4] == entry.CODEC_RAW
    assert pack_frame(Digest.of(text), text)[4] == entry.CODEC_ZSTD
    assert len(pack_frame(Digest.of(text), text)) < 300


@pytest.mark.parametrize("compress", [True, False])
def test_frame_with_any_byte_changed_is_damaged(compress):
    raw = b"the same words " * 60
    digest = Digest.of(raw)
    frame = pack_frame(digest, raw, compress=compress)
    for at in range(len(frame)):
        for flip in (0x01, 0x80):
            broken = bytearray(frame)
            broken[at] ^= flip
            with pytest.raises(Damaged):
                unpack_frame(digest, bytes(broken))


def test_frame_cut_at_any_offset_is_damaged():
    raw = b"the same words " * 60
    frame = pack_frame(Digest.of(raw), raw)
    for at in range(len(frame)):
        with pytest.raises(Damaged) as caught:
            unpack_frame(Digest.of(raw), frame[:at])
        assert caught.value.reason == errors.DAMAGE_TRUNCATED
    with pytest.raises(Damaged):
        unpack_frame(Digest.of(raw), frame + b"\0")


def test_frame_under_another_digest_is_refused():
    frame = pack_frame(Digest.of(b"one"), b"one")
    with pytest.raises(Damaged) as caught:
        unpack_frame(Digest.of(b"two"), frame)
    assert caught.value.reason == errors.DAMAGE_BAD_CHECKSUM


def test_absurd_length_is_refused_before_anything_is_allocated():
    raw = b"x" * 10
    frame = bytearray(pack_frame(Digest.of(raw), raw))
    struct.pack_into("<Q", frame, 5, 1 << 60)
    with pytest.raises(Damaged) as caught:
        unpack_frame(Digest.of(raw), bytes(frame))
    assert caught.value.reason == errors.DAMAGE_UNREADABLE


def test_record_round_trip():
    assert unpack("aot", KEY, pack_record("aot", KEY, RECORD)) == RECORD


@pytest.mark.parametrize(("layer", "key"), [("fx", KEY), ("aot", Key(b"\1" * 32)), ("ao", KEY)])
def test_record_under_another_layer_or_key_is_refused(layer, key):
    with pytest.raises(Damaged) as caught:
        unpack(layer, key, pack_record("aot", KEY, RECORD))
    assert caught.value.reason == errors.DAMAGE_WRONG_KEY


def test_record_with_any_byte_changed_or_cut_is_damaged():
    data = pack_record("aot", KEY, RECORD)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        for bad in (bytes(broken), data[:at]):
            with pytest.raises(Damaged):
                unpack("aot", KEY, bad)


@given(st.data())
@settings(max_examples=200)
def test_parser_keeps_its_bounds_even_when_the_seal_is_right(data):
    """A sealed body with wrong contents (a bug of ours, or malice) is `Damaged` too, never another exception."""
    body = bytearray(pack_record("aot", KEY, RECORD)[:-32])
    head = entry._HEAD.size
    at = data.draw(st.integers(4, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(head, len(body)))]
    sealed = bytes(body) + entry._seal(bytes(body))
    try:
        assert isinstance(unpack("aot", KEY, sealed), Record)
    except Damaged as damage:
        assert damage.reason in (errors.DAMAGE_TRUNCATED, errors.DAMAGE_UNREADABLE, errors.DAMAGE_WRONG_KEY)


SIGNING_KEY, OTHER_KEY = b"s" * 32, b"o" * 32


def test_tag_is_checked_before_anything_is_parsed():
    tagged = pack_record("aot", KEY, RECORD, SIGNING_KEY)
    assert unpack("aot", KEY, tagged, SIGNING_KEY) == unpack("aot", KEY, tagged) == RECORD
    for data, key, reason in [
        (tagged, OTHER_KEY, errors.REFUSED_WRONG_TAG),
        (pack_record("aot", KEY, RECORD), SIGNING_KEY, errors.REFUSED_UNTAGGED),
    ]:
        with pytest.raises(Refused) as caught:
            unpack("aot", KEY, data, key)
        assert (caught.value.reason, caught.value.outcome) == (reason, "refused")


def test_record_that_was_changed_and_sealed_again_is_refused_with_a_key():
    """Whoever has no key can make a seal that holds, for any byte of the record, and no tag."""
    body = pack_record("aot", KEY, RECORD, SIGNING_KEY)[:-32]
    for at in range(4, len(body)):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        with pytest.raises(Damaged):
            unpack("aot", KEY, changed + entry._seal(changed), SIGNING_KEY)


def test_content_is_compared_with_its_digest_where_a_tag_vouches_for_that():
    """A frame's checksum has no key: anybody can make one that holds for other content."""
    forged = pack_frame(Digest.of(b"mine"), b"evil")
    assert unpack_frame(Digest.of(b"mine"), forged) == b"evil"
    with pytest.raises(Refused) as caught:
        unpack_frame(Digest.of(b"mine"), forged, signed=True)
    assert caught.value.reason == errors.REFUSED_WRONG_TAG
    with pytest.raises(Damaged) as caught:
        unpack_frame(Digest.of(b"mine"), forged, 5)
    assert caught.value.reason == errors.DAMAGE_UNREADABLE


def test_frame_that_would_grow_past_its_length_is_refused_before_it_is_decompressed():
    bomb = entry.zstandard.ZstdCompressor().compress(bytes(50 * MIB))
    digest = Digest.of(b"")
    head = entry._FRAME.pack(b"KCB", b"1", entry.CODEC_ZSTD, 1000, len(bomb))
    with pytest.raises(Damaged, match="more than it says"):
        unpack_frame(digest, head + entry._checksum(digest, head, bomb) + bomb)


def test_parts_round_trip_and_are_bound_to_their_entry():
    parts = [Part.of("graph", "add", readable=True), Part.of("torch", "2.13")]
    data = pack_parts("fx", KEY, parts)
    assert unpack_parts("fx", KEY, data) == [(p.name, p.digest, bool(p.text)) for p in parts]
    with pytest.raises(Damaged) as caught:
        unpack_parts("aot", KEY, data)
    assert caught.value.reason == errors.DAMAGE_WRONG_KEY


def test_split_cuts_pieces_out():
    one, two = os.urandom(5000), os.urandom(6000)
    value = b"head" + two + b"between" + one + b"tail"
    assert split(value, [one, two]) == [b"head", two, b"between", one, b"tail"]
    assert split(value, [one[:100]]) == [value]
    assert split(value, [b"\0" * 5000]) == [value]
    assert split(one, [one]) == [one]
    assert split(b"", [one]) == []
    assert split(one + two, [one, two]) == [one, two]


def test_split_with_overlapping_pieces_keeps_the_longer():
    value = os.urandom(20_000)
    assert split(value, [value[:5000], value[2000:12_000]]) == [value[:2000], value[2000:12_000], value[12_000:]]


@given(st.binary(max_size=50), st.lists(st.binary(min_size=1, max_size=8), max_size=5), st.integers(1, 5))
def test_joined_segments_are_the_value(value, pieces, least):
    before = entry.MIN_PIECE
    entry.MIN_PIECE = least
    try:
        cut = split(value, pieces)
    finally:
        entry.MIN_PIECE = before
    assert b"".join(cut) == value
    assert all(cut)
