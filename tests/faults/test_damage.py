"""Damage to entries and to LMDB's own pages; 10,000 and 1,000 of them: `python -m tests.faults.run`."""

from __future__ import annotations

import pytest

from kcache.errors import StoreError
from kcache.store import Store
from tests.faults import entries, mutations, pages


def test_changed_row_is_a_verified_hit_or_a_counted_miss(tmp_path):
    figures = mutations.run(str(tmp_path), 60, seed=11)
    assert figures.whole, figures.to_dict()
    assert figures.counts["noticed"] > 10


def test_damaged_page_costs_one_process_at_most(tmp_path, capfd):
    figures = pages.run(str(tmp_path), 40, seed=11)
    assert figures.whole, (figures.to_dict(), capfd.readouterr().err)


@pytest.mark.parametrize(
    "table, change",
    [("refs", lambda row, data: (row, data + b"more")), ("index", lambda row, data: (row[:9], data)),
     ("index", lambda row, data: (b"\xff" + row, data)), ("access", lambda row, data: (row, b"\xff" * 8))],
)  # fmt: skip
def test_row_of_another_form_hinders_nobody(tmp_path, table, change):
    """A count, a name or a time of the wrong length: reading, storing, noting a use and evicting go on."""
    store = Store.open(tmp_path / "s", max_size=mutations.MAX_SIZE)
    store.write([entries.draft(n) for n in range(8)])
    store.touch([item.id for item in store.scan()])
    with store.transaction(write=True) as txn:
        for row, data in list(txn.rows(table, b"")):
            txn.remove_row(table, row)
            txn.put(table, *change(row, data))
    rows = [item.id for item in store.scan()]
    store.touch(rows, now_ns=10**18)
    assert store.write([entries.draft(n) for n in (8, 12)]) == ["", ""]
    assert entries.read(store, 12) == entries.value(12)
    if table == "access":
        assert {item.used_ns for item in store.scan()} == {10**18, 9, 13}
    store.evict(0)
    assert store.count() == 0
    assert store.write([entries.draft(12)]) == [""]
    assert entries.read(store, 12) == entries.value(12)
    store.close()


@pytest.mark.parametrize("written, newer", [(b"\0", False), (b"", False), (b"99", True)])
def test_format_that_is_no_number_is_damage(tmp_path, written, newer):
    store = Store.open(tmp_path / "s")
    with store.transaction(write=True) as txn:
        txn.put("meta", b"format", written)
    store.close()
    if newer:
        with pytest.raises(StoreError, match="newer"):
            Store.open(tmp_path / "s")
    else:
        Store.open(tmp_path / "s").close()
        assert len(list(tmp_path.glob("s/v1.unreadable-*"))) == 1
