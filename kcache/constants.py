"""Typed text of a constant: equal texts mean equal values of equal types.

The text is what a key holds and what a person reads in a diff. `1`, `1.0`, `True` and
`constexpr(1)` differ, so do `0.0` and `-0.0`; sets are sorted by the text of their
elements; nothing in it depends on addresses, hash seeds or the order of imports.

A value that is no constant (a function, a class, an instance of a user's class) goes to
`leaf`, which returns its text or raises `Opaque`; so containers may hold functions.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import hashlib
import logging
import pathlib
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from kcache.errors import Opaque
from kcache.watch import Watch

Leaf = Callable[[Any], str]

LIMIT = 20_000
"""Elements in one constant, all levels together, beyond which it is opaque."""

_LOCKS = frozenset({("_thread", "lock"), ("_thread", "RLock"), ("_thread", "_local")})
_BY_STR = frozenset(
    {("torch", "dtype"), ("torch", "device"), ("torch", "layout"), ("torch", "memory_format"), ("torch", "qscheme")}
)


def refuse(value: Any) -> str:
    """The leaf that knows nothing: every value that is no constant is opaque."""
    raise Opaque("constant", named(type(value)), "neither a constant nor something that can be followed")


def encode(value: Any, leaf: Leaf = refuse, watch: Watch | None = None) -> str:
    """Text of `value`. Mutable containers on the way are recorded in `watch`.

    Raises `Opaque` where `leaf` does, for a set whose elements `leaf` had to encode, and for
    constants with more than `LIMIT` elements.
    """
    return repr(value) if type(value) in PLAIN else _Encoder(leaf, watch).text(value)


def is_constant(value: Any) -> bool:
    """Whether `encode` knows the value's type itself, elements aside."""
    return _writer(value) is not None


def named(cls: type) -> str:
    """`module.qualname` of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


class _Encoder:
    def __init__(self, leaf: Leaf, watch: Watch | None) -> None:
        self.leaf = leaf
        self.watch = watch
        self.open: list[int] = []
        self.count = 0
        self.leaves = 0

    def text(self, value: Any) -> str:
        self.count += 1
        if self.count > LIMIT:
            raise Opaque("constant", named(type(value)), f"more than {LIMIT} elements")
        if type(value) in PLAIN:
            return repr(value)
        write = _writer(value)
        if write is None:
            self.leaves += 1
            return self.leaf(value)
        if id(value) in self.open:
            return f"<{len(self.open) - self.open.index(id(value))} up>"
        self.open.append(id(value))
        try:
            return write(self, value)
        finally:
            self.open.pop()

    def items(self, values: Iterable[Any]) -> str:
        return ", ".join([self.text(v) for v in values])

    def pairs(self, mapping: Mapping[Any, Any]) -> str:
        return ", ".join([f"{self.text(k)}: {self.text(v)}" for k, v in mapping.items()])

    def fields(self, names: Iterable[str], value: Any) -> str:
        return ", ".join([f"{name}={self.text(getattr(value, name))}" for name in names])


PLAIN = frozenset({type(None), bool, int, str, bytes, float, type(Ellipsis), type(NotImplemented)})
"""Types whose `repr` is injective and distinct from that of every other type here."""

Writer = Callable[[_Encoder, Any], str]


def _tuple(e: _Encoder, v: Any) -> str:
    return f"({e.items(v)},)" if v else "()"


def _list(e: _Encoder, v: Any) -> str:
    if e.watch is not None:
        e.watch.sequence(v)
    return f"[{e.items(v)}]"


def _dict(e: _Encoder, v: Any) -> str:
    if e.watch is not None:
        e.watch.dictionary(v)
    return f"{{{e.pairs(v)}}}"


def _set(e: _Encoder, v: Any) -> str:
    if e.watch is not None and type(v) is set:
        e.watch.sequence(v)
    before = e.leaves
    inner = sorted(e.text(x) for x in v)
    if e.leaves != before:
        raise Opaque("constant", type(v).__name__, "a set of things that are no constants has no order")
    return f"{type(v).__name__}{{{', '.join(inner)}}}"


def _enum(e: _Encoder, v: enum.Enum) -> str:
    name = v.name if v.name is not None else ""
    return f"enum {type(v).__qualname__}.{name}={e.text(v._value_)}"


def _ordered(e: _Encoder, v: Any) -> str:
    extra = f"{e.text(v.default_factory)}, " if isinstance(v, collections.defaultdict) else ""
    return f"{type(v).__qualname__}({extra}{_dict(e, v)})"


def _bytearray(e: _Encoder, v: bytearray) -> str:
    if e.watch is not None:
        e.watch.sequence(v)
    return repr(bytearray(v))


def _deque(e: _Encoder, v: Any) -> str:
    return f"deque({_list(e, v)}, {v.maxlen})"


def _constexpr(e: _Encoder, v: Any) -> str:
    inner = e.watch.name(vars(v), "value") if e.watch is not None else v.value
    return f"constexpr({e.text(inner)})"


def _namespace(e: _Encoder, v: Any) -> str:
    return f"namespace({_dict(e, vars(v))})"


def _proxy(e: _Encoder, v: Any) -> str:
    return f"mappingproxy({_dict(e, v)})"


def _namedtuple(e: _Encoder, v: Any) -> str:
    return f"{type(v).__qualname__}({e.fields(v._fields, v)})"


def _dataclass(e: _Encoder, v: Any) -> str:
    if e.watch is not None:
        names = [f.name for f in dataclasses.fields(v)]
        e.watch.content(v, lambda v: [getattr(v, name) for name in names])
    return f"{type(v).__qualname__}({e.fields([f.name for f in dataclasses.fields(v)], v)})"


def _numpy(e: _Encoder, v: Any) -> str:
    if v.dtype.hasobject:
        raise Opaque("constant", "numpy array", "it holds Python objects")
    if e.watch is not None and v.flags.writeable:
        e.watch.call(v.tobytes)
    data = hashlib.sha256(v.tobytes()).hexdigest() if v.size > 1 else v.tobytes().hex()
    return f"numpy {type(v).__name__} {v.dtype.str}{list(v.shape)} {data} {v.item() if v.size == 1 else ''}".rstrip()


_WRITERS: dict[type, Writer] = {
    **{cls: lambda e, v: repr(v) for cls in PLAIN},
    tuple: _tuple,
    list: _list,
    dict: _dict,
    set: _set,
    frozenset: _set,
    collections.OrderedDict: _ordered,
    collections.defaultdict: _ordered,
    collections.Counter: _ordered,
    collections.deque: _deque,
    complex: lambda e, v: f"complex({v.real!r}, {v.imag!r})",
    bytearray: _bytearray,
    slice: lambda e, v: f"slice({e.items((v.start, v.stop, v.step))})",
    range: lambda e, v: repr(v),
    types.SimpleNamespace: _namespace,
    types.MappingProxyType: _proxy,
    re.Pattern: lambda e, v: f"pattern({v.pattern!r}, {v.flags})",
}


def _writer(value: Any) -> Writer | None:
    cls = type(value)
    found = _WRITERS.get(cls)
    return found if found is not None else _other_writer(cls)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def _other_writer(cls: type) -> Writer | None:
    if issubclass(cls, enum.Enum):
        return _enum
    if issubclass(cls, tuple):
        return _namedtuple if hasattr(cls, "_fields") else _subclass_of(tuple)
    if dataclasses.is_dataclass(cls):
        return _dataclass
    if issubclass(cls, pathlib.PurePath) and not issubclass(cls, pathlib.Path):  # one that reads no file system
        return lambda e, v: f"path({str(v)!r})"
    if issubclass(cls, logging.Logger):
        return lambda e, v: f"logger({v.name!r})"
    module, name = cls.__module__, cls.__qualname__
    if (module, name) in _LOCKS:
        return lambda e, v: name
    if (module, name) in _BY_STR:
        return lambda e, v: f"torch.{name}({str(v)!r})"
    return _library_writer(cls, module)


def _library_writer(cls: type, module: str) -> Writer | None:
    if module == "triton.language.core":
        if cls.__name__ == "constexpr":
            return _constexpr
        if hasattr(cls, "is_dtype") or cls.__name__.endswith("_type"):
            return lambda e, v: f"tl.{cls.__name__}({str(v)!r})"
    if module.startswith("triton._C.") and hasattr(cls, "__members__"):  # an enumeration written in C++
        return lambda e, v: f"{named(cls)}.{v.name}"
    if module == "numpy" and hasattr(cls, "tobytes"):
        return _numpy
    if module in ("typing", "types") and (cls.__name__.endswith("Alias") or cls.__name__ in _TYPING):
        return lambda e, v: f"typing({v!r})"
    if module in ("decimal", "fractions", "uuid", "datetime") and cls.__name__ in _REPR:
        return lambda e, v: repr(v)
    return None


_TYPING = frozenset({"UnionType", "_SpecialForm", "TypeVar", "ParamSpec", "Union"})
_REPR = frozenset({"Decimal", "Fraction", "UUID", "timedelta"})


def _subclass_of(base: type) -> Writer:
    # a plain subclass (torch.Size, a structseq such as sys.version_info): its type, then its items
    return lambda e, v: f"{type(v).__qualname__}({e.items(base.__iter__(v))})"  # type: ignore[attr-defined]
