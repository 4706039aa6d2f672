"""Entries of strangers: with a signing key, what is not tagged with it is a counted miss and is made anew."""

from __future__ import annotations

import pytest

from kcache.cache import Cache
from kcache.config import Settings
from kcache.counters import Stats
from kcache.digest import Digest, Key, Part
from kcache.entry import pack_frame
from kcache.errors import REFUSED_WRONG_TAG, Damaged
from kcache.store import Store

KEY = Key.of([Part.of("name", "entry")])
OURS, THEIRS = "a secret of the team", "a secret of another team"
CONTENT = b"import this\n" * 100


def open_with(tmp_path, signing_key: str | None) -> Cache:
    return Cache.open(Settings.load(dir=tmp_path / "s", signing_key=signing_key), Stats())


def run(tmp_path, signing_key: str | None, content: bytes = CONTENT) -> tuple[bytes | None, dict]:
    """What a program sees that looks an entry up and stores it if it missed: its value, and the counted reasons."""
    cache = open_with(tmp_path, signing_key)
    value = cache.get("code", KEY)
    if value is None:
        cache.put("code", KEY, content)
        cache.flush()
    found = cache.stats.snapshot().reasons
    cache.close()
    return value, found


@pytest.mark.parametrize(
    ("maker", "reader", "reason"),
    [(None, OURS, "untagged"), (THEIRS, OURS, "wrong-tag")],
    ids=["untagged", "wrongly tagged"],
)
def test_entry_of_a_stranger_is_a_counted_miss_and_is_replaced(tmp_path, maker, reader, reason):
    assert run(tmp_path, maker, b"evil") == (None, {("code", "miss", "absent"): 1})
    value, reasons = run(tmp_path, reader)
    assert value is None
    assert reasons == {("code", "refused", reason): 1, ("code", "miss", "absent"): 1}
    assert run(tmp_path, reader) == (CONTENT, {})


def test_tagged_entries_are_read_with_their_key_and_without_any(tmp_path):
    run(tmp_path, OURS)
    assert run(tmp_path, OURS) == (CONTENT, {})
    assert run(tmp_path, None) == (CONTENT, {})


def test_candidates_of_a_stranger_are_not_handed_out(tmp_path):
    run(tmp_path, None)
    cache = open_with(tmp_path, OURS)
    assert cache.candidates("code", KEY) == []
    assert cache.stats.snapshot().reasons == {("code", "refused", "untagged"): 1}
    cache.close()


def test_content_exchanged_under_a_tagged_record_is_refused(tmp_path):
    run(tmp_path, OURS)
    forger = Store.open(tmp_path / "s")
    row = Digest.of(CONTENT).raw + bytes(4)
    forged = pack_frame(Digest.of(CONTENT), b"import os  #" * 100)
    assert forger.swap("blobs", row, forger.fetch("blobs", row), forged)
    forger.close()
    cache = open_with(tmp_path, OURS)
    (candidate,) = cache.candidates("code", KEY)
    with pytest.raises(Damaged) as caught:
        candidate.load()
    assert caught.value.reason == REFUSED_WRONG_TAG
    assert cache.stats.snapshot().reasons == {("code", "refused", "wrong-tag"): 1}
    assert cache.get("code", KEY) is None
    cache.close()


def test_a_read_only_store_refuses_and_keeps_what_it_cannot_drop(tmp_path):
    run(tmp_path, None)
    settings = Settings.load(signing_key=OURS)
    reader = Store.open(tmp_path / "s", readonly=True, signing_key=settings.signing_key)
    assert reader.variants("code", KEY) == []
    assert reader.count() == 1
    reader.close()
