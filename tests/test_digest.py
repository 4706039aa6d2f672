"""Keys and digests: framed, typed, and the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcache.digest import Digest, Key, Part

GOLDEN_DIGEST = "493ed939968afcf11e03c13eafdf87b50be8d823c76ce6de928751d7ad5f5ac3"
GOLDEN_KEY = "ebaca98cff59d142bb25db01ff30e9abb39e15040995559a569ad8a4c44b77de"
PARTS = (Part.of("graph", "add"), Part.of("device", b"\x09\x00"))


def test_golden_values_never_change():
    assert Digest.of(b"kcache").hex == GOLDEN_DIGEST
    assert Key.of(PARTS).hex == GOLDEN_KEY


@pytest.mark.parametrize("seed", ["0", "1"])
def test_key_is_the_same_in_a_fresh_interpreter(seed):
    code = (
        "from kcache.digest import Key, Part;"
        "print(Key.of([Part.of('graph', 'add'), Part.of('device', b'\\x09\\x00')]).hex)"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == GOLDEN_KEY


def test_key_and_digest_of_the_same_bytes_are_not_equal():
    raw = bytes(range(32))
    assert Key(raw) != Digest(raw)
    assert len({Key(raw), Digest(raw), Key(raw)}) == 2
    assert Key(raw).hex == raw.hex()
    assert repr(Key(raw)) == "key:000102030405"
    assert repr(Digest(raw)) == "blob:000102030405"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_other_lengths_are_refused(size):
    with pytest.raises(ValueError, match="takes 32 bytes"):
        Key(b"x" * size)


def test_order_name_and_value_all_count():
    a, b = PARTS
    keys = {Key.of(p).hex for p in ([a, b], [b, a], [a], [a, a], [Part("x", a.digest), b], [])}
    assert len(keys) == 6


@given(st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=6)), max_size=4), st.data())
def test_no_two_lists_of_parts_share_a_key(rows, data):
    other = data.draw(st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=6)), max_size=4))
    first = Key.of(Part.of(*row) for row in rows)
    assert (first == Key.of(Part.of(*row) for row in other)) == (rows == other)


def test_readable_parts_keep_their_text():
    assert Part.of("graph", "add", readable=True).text == b"add"
    assert Part.of("graph", "add").text == b""
    assert Part.of("graph", "add", readable=True).digest == Part.of("graph", b"add").digest
