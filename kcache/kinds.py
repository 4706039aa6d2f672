"""How each kind of thing that is no constant is followed.

`follower` names a record for the thing and returns the function that fills it, or the
reason why it cannot be followed, or None if it is of no known kind.
"""

from __future__ import annotations

import collections
import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

from kcache import launcher, resolve, source
from kcache.constants import named
from kcache.walk import Record, Walk

Make = Callable[[Walk, Record, Any], None]


def follower(value: Any) -> tuple[str, Make | str] | None:
    """Title and filler of the record for `value`; a string in place of a filler is a refusal."""
    if launcher.is_jitted(value):
        return f"helper {_full(value.fn)}", jitted
    if launcher.is_jit_callable(value):
        return f"constexpr function {_full(value.fn)}", constexpr_function
    if launcher.inner(value) is not None:
        return f"launcher {type(value).__name__}", wrapper
    if launcher.is_config(value):
        return "option config", instance
    if isinstance(value, types.FunctionType):
        if _dispatches(value):
            return f"function {_full(value)}", single_dispatch
        if resolve.in_owned_file(value.__code__):
            return f"wrapper {_full(value)}", owned_code
        return f"function {_full(value)}", lambda walk, record, fn: walk.function(fn, record)
    if isinstance(value, type):
        return f"class {named(value)}", class_
    if isinstance(value, types.ModuleType):
        return value.__name__, "a module as a value; only attributes of modules can be followed"
    return _callable(value) or _instance(value)


def _callable(value: Any) -> tuple[str, Make | str] | None:
    if isinstance(value, types.MethodType):
        return f"method {_full(value.__func__)}", method
    if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        return f"method {value.__name__}", builtin_method
    if isinstance(value, functools.partial):
        return "partial", partial
    if isinstance(value, (staticmethod, classmethod)):
        return f"method {_full(value.__func__)}", lambda walk, r, v: held(walk, r, type(v).__name__, v.__func__)
    if isinstance(value, property):
        return "property", lambda walk, r, v: held(walk, r, "property", (v.fget, v.fset, v.fdel))
    if isinstance(value, functools.cached_property):
        return "property", lambda walk, r, v: held(walk, r, "cached_property", v.func)
    if type(value).__name__ == "_lru_cache_wrapper":
        return f"function {_full(value)}", lambda walk, r, v: held(walk, r, "lru_cache", v.__wrapped__)
    if type(value).__module__ == "operator" and hasattr(value, "__reduce__"):
        return "operator", lambda walk, r, v: held(walk, r, "operator", v.__reduce__())
    if type(value).__name__ == "BoundConstexprFunction":
        return "method", lambda walk, r, v: held(walk, r, "bound", (v.__self__, v.__func__))
    return None


def _instance(value: Any) -> tuple[str, Make | str] | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "tensor", "a tensor; its values are not part of a key"
    if torch is not None and isinstance(value, torch.nn.Module):
        return "module", "an nn.Module; its parameters are not part of a key"
    if isinstance(value, pathlib.Path):
        return "path", "a path; what it leads to is not part of a key"
    if type(value).__module__.partition(".")[0] in resolve.STATE:
        return "state", f"a {named(type(value))}, whose state changes"
    if type(getattr(value, "__dict__", None)) is dict or _slots(type(value)) or _is_user_subclass(type(value)):
        return f"instance {named(type(value))}", instance
    return (f"instance {named(type(value))}", instance) if type(value) is object else None


def _full(fn: Any) -> str:
    module = getattr(fn, "__module__", None)
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    return f"{module}.{name}" if module else name


def _is_user_subclass(cls: type) -> bool:
    return resolve.owner(cls) is None and issubclass(cls, tuple(_BUILTIN))


def _slots(cls: type) -> list[str]:
    found: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [s for s in found if s not in ("__dict__", "__weakref__")]


def held(walk: Walk, record: Record, word: str, value: Any) -> None:
    """A thing that only holds another."""
    record.lines.append(f"{word} {walk.value(value, record, word)}")


def method(walk: Walk, record: Record, value: types.MethodType) -> None:
    """A bound method: the function, and what it is bound to."""
    record.lines.append(f"function {walk.value(value.__func__, record, value.__name__)}")
    record.lines.append(f"bound to {walk.value(value.__self__, record, '__self__')}")


def builtin_method(walk: Walk, record: Record, value: Any) -> None:
    """A method of a builtin type bound to a value."""
    record.lines.append(f"{value.__name__} of {walk.value(value.__self__, record, '__self__')}")


def partial(walk: Walk, record: Record, value: functools.partial[Any]) -> None:
    """A partial application."""
    for field in ("func", "args", "keywords"):
        record.lines.append(f"{field} {walk.value(getattr(value, field), record, field)}")


def _dispatches(fn: types.FunctionType) -> bool:
    made = fn.__code__.co_filename == functools.__file__
    return made and isinstance(getattr(fn, "registry", None), types.MappingProxyType)


def single_dispatch(walk: Walk, record: Record, fn: types.FunctionType) -> None:
    """A function made by `functools.singledispatch`: which function each class has, not the cache of answers."""
    record.lines.append(f"singledispatch {walk.value(fn.registry, record, 'registry')}")  # type: ignore[attr-defined]


def owned_code(walk: Walk, record: Record, fn: types.FunctionType) -> None:
    """A function made inside torch, Triton or the standard library: its code is known, its cells are not."""
    walk.watch.function(fn)
    record.lines.append(
        f"made by {fn.__module__ if _from(fn) else ''}.{fn.__code__.co_name}:{fn.__code__.co_firstlineno}"
    )
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        record.lines.append(f"{name} = {walk.value(walk.watch.cell(cell), record, name)}")
    walk.defaults([(str(i), v) for i, v in enumerate(fn.__defaults__ or ())], fn, record)
    walk.defaults(sorted((fn.__kwdefaults__ or {}).items()), fn, record)


def _from(fn: types.FunctionType) -> bool:
    # functools.wraps copies the module's name of what is wrapped
    return fn.__globals__.get("__name__") == fn.__module__


def jitted(walk: Walk, record: Record, value: Any) -> None:
    """A jitted function: its text, what Triton takes from its signature, its options."""
    own = vars(value)
    walk.watch.name(own, "_src")
    walk.watch.name(own, "fn")
    try:
        text = source.analyse(value.src)
    except (SyntaxError, ValueError, RecursionError) as error:
        record.lines.append(walk.refuse(record, value.fn.__name__, f"its text cannot be parsed: {error}"))
        return
    if not record.inside:
        record.name = f"kernel {value.fn.__name__}"
        record.lines.append(f"kernel {value.fn.__name__}")
    record.lines.append(type(value).__qualname__)  # Gluon has a class of its own
    record.where, record.inside = value.fn.__qualname__, True
    walk.launchers.append(value)
    record.lines.append("\n".join([launcher.parameter_facts(p) for p in value.params]))
    walk.watch.sequence(value.params)
    defaults = [(p.name, p.default) for p in value.params if p.default is not inspect.Parameter.empty]
    walk.defaults(defaults, value.fn, record)
    options(walk, record, value)
    walk.text(text, value.fn, record)
    _location(walk, value, text)


def _location(walk: Walk, value: Any, text: source.Text) -> None:
    if text.asserts or any(ref.attrs[-1:] == ("device_assert",) or ref.root == "device_assert" for ref in text.refs):
        walk.locations[launcher.location(value)] = value.src


def constexpr_function(walk: Walk, record: Record, value: Any) -> None:
    """A constexpr function: Triton calls the Python function."""
    walk.watch.name(vars(value), "fn")
    record.lines.append(f"constexpr {walk.value(value.fn, record, value.fn.__name__)}")


def options(walk: Walk, record: Record, value: Any) -> None:
    """Every field of a launcher that counts and is not empty, each a part of its own."""
    own = vars(value)
    walk.watch.keys(own, launcher.known_fields(value))
    for name, field in list(launcher.fields(value)):
        walk.watch.name(own, name)
        if field is None or field is False or field == [] or field == () or field == {}:
            continue
        if name == "configs" and isinstance(field, (list, tuple)):
            walk.watch.sequence(field)
            for at, config in enumerate(field):
                record.lines.append(f"config {option(walk, record, f'config {at}', config)}")
        else:
            record.lines.append(f"{name} {option(walk, record, name, field)}")


def option(walk: Walk, record: Record, name: str, value: Any) -> str:
    """One option as a part of its own."""
    own = Record(f"option {name}", record.where, record.inside)
    number = walk.add(own)
    if launcher.is_config(value):
        instance(walk, own, value)
    else:
        own.lines.append(walk.value(value, own, name))
    return record.link(number)


def wrapper(walk: Walk, record: Record, value: Any) -> None:
    """An autotuner, heuristics or a library's own launcher.

    Its fields count, and the functions among them. Of its class only the name does: the
    methods run at each launch and choose among variants, each of which has its own key.
    """
    below = launcher.inner(value)
    walk.launchers.append(value)
    record.lines.append(type(value).__qualname__)
    for name in launcher.BODY:
        walk.watch.name(vars(value), name)
    record.lines.append(f"around {walk.value(below, record, 'fn')}")
    options(walk, record, value)


def instance(walk: Walk, record: Record, value: Any) -> None:
    """An object by its class and its attributes."""
    cls = type(value)
    record.lines.append(f"instance of {walk.value(cls, record, cls.__name__)}")
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        walk.watch.dictionary(own)
        for name, field in list(own.items()):
            record.lines.append(f"{name} = {walk.value(field, record, f'{cls.__name__}.{name}')}")
    for name in _slots(cls):
        field = walk.watch.attribute(value, name)
        record.lines.append(f"{name} = {walk.value(field, record, f'{cls.__name__}.{name}')}")
    for base, read in _BUILTIN.items():
        if isinstance(value, base):
            content = walk.watch.content(value, read)
            record.lines.append(f"as {base.__name__} {walk.value(content, record, cls.__name__)}")


_BUILTIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda v: (v.real, v.imag),
    str: str.__str__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    bytearray: lambda v: bytearray.__getitem__(v, slice(None)),
    list: lambda v: list(list.__iter__(v)),
    dict: lambda v: dict(dict.items(v)),
    set: lambda v: set(set.__iter__(v)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)),
    collections.deque: lambda v: list(collections.deque.__iter__(v)),
}
"""What an instance of a subclass holds besides its attributes, read past methods that the subclass redefines."""

_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def class_(walk: Walk, record: Record, cls: type) -> None:
    """A user's class: its bases and everything in its dictionary."""
    record.lines.append(f"bases {walk.value(cls.__bases__, record, '__bases__')}")
    if type(cls) is not type and resolve.owner(type(cls)) is None:
        record.lines.append(f"metaclass {walk.value(type(cls), record, 'metaclass')}")
    walk.watch.attribute(cls, "__bases__")
    walk.watch.keys(cls.__dict__, cls.__dict__)
    for name, value in resolve.names_of(cls).items():
        walk.watch.name(cls.__dict__, name)
        if name == "__annotations__" and not _reads_annotations(cls):
            continue
        if isinstance(value, _FIELDS) or type(value).__name__ == "_tuplegetter":
            record.lines.append(name)
        else:
            title = f"constant {named(cls)}.{name}"
            record.lines.append(f"{name} = {walk.constant(value, record, title, name)}")


def _reads_annotations(cls: type) -> bool:
    return getattr(cls, "__triton_aggregate__", False) or hasattr(cls, "__dataclass_fields__")
