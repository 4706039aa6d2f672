"""Texts of constants: equal exactly where values and types are."""

from __future__ import annotations

import collections
import dataclasses
import enum
import logging
import math
import pathlib
import re
import threading
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcache.constants import LIMIT, encode, is_constant
from kcache.errors import Opaque
from kcache.watch import Watch


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    A = 1
    B = 2


Pair = collections.namedtuple("Pair", "a b")
Other = collections.namedtuple("Other", "a b")


@dataclasses.dataclass
class Box:
    a: int
    b: Any = None


DISTINCT: list[Any] = [
    None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e-5, 1e-6, 1j, complex(0.0, -0.0), complex(-0.0, 0.0),
    "", "1", "None", "a'b", 'a"b', "\ud800", b"", b"1", bytearray(b"1"), (), (1,), (1, 2), ((1,), 2), (1, (2,)), [], [1], [1, 2], [(1,)],
    {}, {1: 2}, {"1": 2}, {1: 2.0}, {1: 2, 3: 4}, {3: 4, 1: 2}, set(), {1}, {"1"}, {True}, frozenset(), frozenset({1}), {1: {2: 3}},
    Colour.RED, Colour.BLUE, Level.LOW, Mode.A, Mode.A | Mode.B, Pair(1, 2), Pair(1, 2.0), Other(1, 2), Box(1), Box(1, 2), Box(True),
    slice(1, 2), slice(None, 2), range(2), range(1, 2), pathlib.PurePosixPath("/a"), types.SimpleNamespace(a=1), types.SimpleNamespace(a=2),
    collections.OrderedDict(a=1), collections.Counter("a"), collections.deque([1]), collections.deque([1], 3), collections.deque([1, 2]),
    re.compile("a"), re.compile("a", re.I), ..., NotImplemented, logging.getLogger("a"), logging.getLogger("b"), threading.Lock(),
]  # fmt: skip


def test_distinct_values_have_distinct_texts() -> None:
    texts = [encode(v) for v in DISTINCT]
    twice = [(v, t) for v, t in zip(DISTINCT, texts) if texts.count(t) > 1]
    assert not twice


def test_texts_are_stable() -> None:
    assert encode({1: [1.5, "a"], "k": (None,)}) == "{1: [1.5, 'a'], 'k': (None,)}"
    assert encode(Colour.CRIMSON) == encode(Colour.RED) == "enum Colour.RED=1"
    assert encode({"b", "a"}) == "set{'a', 'b'}"


def test_sets_do_not_depend_on_order() -> None:
    assert encode({"a", "b", "c"}) == encode({"c", "b", "a"})


def test_cycles_end() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert encode(ring) == "[1, <1 up>]"
    other: list[Any] = [1]
    other.append([other])
    assert encode(other) != encode(ring)


def test_what_is_no_constant() -> None:
    for value in (object(), encode, Box, types, lambda: 1):
        assert not is_constant(value)
        with pytest.raises(Opaque):
            encode([value])
    assert encode([encode, 1], lambda v: v.__name__) == "[encode, 1]"
    with pytest.raises(Opaque):
        encode({encode}, lambda v: v.__name__)


def test_too_large() -> None:
    with pytest.raises(Opaque):
        encode(list(range(LIMIT + 1)))


def test_watch_sees_mutation() -> None:
    for value, change in (
        ([1], lambda v: v.append(2)), ([1], lambda v: v.__setitem__(0, True)), ({"a": [1]}, lambda v: v["a"].append(2)),
        ({1}, lambda v: v.add(2)), (Box(1), lambda v: setattr(v, "a", 2)), (types.SimpleNamespace(a=1), lambda v: setattr(v, "a", 2)),
        (collections.deque([1]), lambda v: v.append(1)), (bytearray(b"1"), lambda v: v.append(1)),
        (types.MappingProxyType({"a": [1]}), lambda v: v["a"].append(1)),
    ):  # fmt: skip
        watch = Watch()
        encode(value, watch=watch)
        assert watch.holds()
        change(value)
        assert not watch.holds(), value


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=4))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Equality of value and type, with nan equal to itself and zeros told apart."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


@given(VALUES, VALUES)
def test_equal_texts_mean_equal_values(a: Any, b: Any) -> None:
    assert (encode(a) == encode(b)) == same(a, b)


def test_torch_and_triton_values() -> None:
    torch = pytest.importorskip("torch")
    tl = pytest.importorskip("triton.language")
    values = [torch.float32, torch.float16, torch.device("cpu"), torch.device("cuda", 1), torch.strided, torch.channels_last, torch.Size([1]),
              tl.float32, tl.float16, tl.pointer_type(tl.float32), tl.constexpr(1), tl.constexpr(1.0), tl.constexpr(True),
              tl.constexpr((1,)), tl.constexpr(tl.float32), "torch.float32", "fp32", 1]  # fmt: skip
    texts = [encode(v) for v in values]
    assert len(set(texts)) == len(values), texts
    constant = tl.constexpr(1)
    watch = Watch()
    encode(constant, watch=watch)
    constant.value = 2
    assert not watch.holds()


def test_numpy_values() -> None:
    np = pytest.importorskip("numpy")
    values = [
        np.float32(1),
        np.float64(1),
        np.int32(1),
        np.int64(1),
        np.bool_(True),
        np.array([1]),
        np.array([1, 2]),
        np.array([[1, 2]]),
        1,
        1.0,
    ]
    assert len({encode(v) for v in values}) == len(values)
