"""Descriptions: parts taken at the lookup, compared with the same parts taken at the save."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kcache.digest import Key, Part
from kcache.key import Description, Descriptions


def parts(**values: str) -> tuple[Part, ...]:
    return tuple(Part.of(name, value) for name, value in values.items())


def description(again: Iterable[Part] = (), **values: str) -> Description:
    return Description(parts(**values), lambda: again)


def test_the_key_is_the_fold_of_all_parts_in_their_order() -> None:
    """Each part's name, value and place are in the key, and the label is not."""
    one = description(a="1", b="2")
    assert one.key == Key.of(one.parts) == description(a="1", b="2").key
    assert Description(one.parts, lambda: (), "label").key == one.key
    others = [description(a="1", b="3"), description(a="1", c="2"), description(b="2", a="1"), description(a="1")]
    assert len({one.key, *(other.key for other in others)}) == 5


def test_changed_names_parts_that_differ_now_in_order() -> None:
    """Only what is taken again is compared, and each difference is named."""
    assert description(parts(a="1"), a="1", b="2").changed() == []
    assert description(parts(b="x", a="y"), a="1", b="2", c="3").changed() == ["b", "a"]


def test_a_part_that_was_not_there_before_has_changed() -> None:
    """A pass or an operator that appears while compiling counts as a change."""
    assert description(parts(a="1", pass_0="new"), a="1").changed() == ["pass_0"]


def test_changed_takes_the_parts_anew_each_time() -> None:
    """A value that changes after the key was taken is seen, and one that changes back is no difference."""
    now = ["1"]
    made = Description(parts(a="1"), lambda: parts(a=now[0]))
    assert made.changed() == []
    now[0] = "2"
    assert made.changed() == ["a"]
    now[0] = "1"
    assert made.changed() == []


def test_differing_compares_what_both_have() -> None:
    """Parts of one side alone belong to another recipe and are no difference."""
    one, other = description(a="1", b="2", c="3"), description(b="2", c="4", d="5")
    assert one.differing(other) == ["c"]
    assert one.differing(one) == []


def test_descriptions_are_bounded_and_the_oldest_goes_first() -> None:
    """Asking again for a description renews it; the one not asked for longest is dropped."""
    held = Descriptions(limit=2)
    first, second, third = description(a="1"), description(a="2"), description(a="3")
    keys = [held.remember(d) for d in (first, second)]
    assert held.remember(first) == keys[0] == first.key
    held.remember(third)
    assert held.get(keys[1]) is None
    assert held.get(keys[0]) is first
    assert held.get(third.key) is third


def test_descriptions_may_be_remembered_from_many_threads() -> None:
    """No thread loses what it remembered last, and the bound holds."""
    held, failed = Descriptions(limit=64), []

    def work(n: int) -> None:
        for i in range(200):
            mine = description(a=f"{n} {i}")
            if held.get(held.remember(mine)) is None:
                failed.append((n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(held._held) == 64
