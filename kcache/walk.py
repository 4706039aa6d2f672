"""The walk behind a fingerprint: from one object through every name it depends on.

Each thing that is followed becomes a record: a text of its own content in which other
records stand as `@0`, `@1`, … and the list of those records. Records are numbered in the
order of discovery, which depends on structure alone; cycles end at a record's number. The
digest is over all texts and all links, so names of helpers and constants are not in it.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterable
from typing import Any

from kcache import bytecode, launcher, resolve, source
from kcache.constants import PLAIN, encode, is_constant, named
from kcache.digest import Digest, Part
from kcache.errors import Opaque
from kcache.scope import Ref
from kcache.source import Text
from kcache.watch import MISSING, Watch

LIMIT = 4000
"""Records in one fingerprint, beyond which it is opaque."""


class Record:
    """One thing followed: what it is called, its own content, and what that refers to."""

    def __init__(self, name: str, where: str, inside: bool = False) -> None:
        self.name = name
        self.where = where
        self.inside = inside
        """Whether it was reached from a kernel: the names of jitted functions do not count there."""
        self.lines: list[str] = []
        self.links: list[int] = []

    def link(self, number: int) -> str:
        """Text that stands for the record `number` in this one."""
        if number not in self.links:
            self.links.append(number)
        return f"@{self.links.index(number)}"


class Walk:
    """One walk. `run` may be called once."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.records: list[Record] = []
        self.numbers: dict[int, int] = {}
        self.held: list[Any] = []
        self.opaque: list[Opaque] = []
        self.operators: dict[str, None] = {}
        self.locations: dict[str, str] = {}
        """Place and text of each kernel with an assertion."""
        self.launchers: list[Any] = []
        """Kernels and wrappers met, any of which may turn on `debug`."""

    # --- the result

    def run(self, obj: Any) -> Any:
        """Fingerprint of `obj`."""
        from kcache.closure import Fingerprint

        name = getattr(launcher.bottom(obj), "__name__", None) or type(obj).__name__
        root = Record(f"root {name}", name)
        try:
            root.lines.append(self.value(obj, root, name))
        except RecursionError:
            self.refuse(root, name, "the closure is too deep")
        parts = self.parts([root, *self.records])
        digest = Digest.of(b"".join(p.digest.raw for p in parts))
        return Fingerprint(
            digest, name, parts, tuple(self.opaque), tuple(sorted(self.operators)), tuple(self.locations), obj
        )

    def parts(self, records: list[Record]) -> tuple[Part, ...]:
        seen: dict[str, int] = {}
        made = []
        for record in records:
            seen[record.name] = count = seen.get(record.name, 0) + 1
            name = record.name if count == 1 else f"{record.name} ({count})"
            made.append(Part.of(name, "\n".join(record.lines).encode(errors="backslashreplace"), readable=True))
        if self.locations and (launcher.debugging(self.watch) or any(map(launcher.debug, self.launchers))):
            places = "\n".join([f"{place}\n{text}" for place, text in self.locations.items()])
            made.append(Part.of("places of assertions", places, readable=True))
        links = "\n".join(" ".join(map(str, r.links)) for r in records)
        return (*made, Part.of("links between parts", links, readable=True))

    # --- values

    def value(self, value: Any, record: Record, name: str) -> str:
        """Text of `value` inside `record`, which calls it `name`."""
        if type(value) in PLAIN:
            return repr(value)
        try:
            text = encode(value, lambda leaf: self.leaf(leaf, record, name), self.watch)
        except Opaque as error:
            return self.refuse(record, name, f"{error.name}: {error.why}")
        if type(value) not in _NO_METHODS and is_constant(value) and (methods := _methods(type(value), self.watch)):
            text += " " + self.link(
                type(value), record, lambda r: self.methods(r, methods), f"class {named(type(value))}"
            )
        return text

    def constant(self, value: Any, record: Record, title: str, name: str) -> str:
        """Like `value`; a constant gets a record of its own, so that a difference has a name."""
        if not is_constant(value):
            return self.value(value, record, name)
        own = Record(title, record.where, record.inside)
        number = self.add(own)
        own.lines.append(self.value(value, own, name))
        return record.link(number)

    def leaf(self, value: Any, record: Record, name: str) -> str:
        """Text of something that is no constant: its owner's name, a link, or a refusal."""
        if value is MISSING:
            return "unbound"
        if (owned := resolve.owner(value)) is not None:
            return self.owned(value, owned, record, name)
        if (operator := _operator(value)) is not None:
            return self.operator(operator)
        if value is os.environ or value is getattr(os, "environb", None):
            return self.refuse(record, name, "reads the process environment")
        from kcache import kinds

        follow = kinds.follower(value)
        if follow is None:
            return self.refuse(record, name, f"{named(type(value))} can be neither encoded nor followed")
        title, make = follow
        if isinstance(make, str):
            return self.refuse(record, name, make)
        return self.link(value, record, lambda own: make(self, own, value), title)

    def link(self, value: Any, record: Record, make: Any, title: str) -> str:
        """Text for the record of `value`, made now if this is the first time it is met."""
        number = self.numbers.get(id(value))
        if number is None:
            if len(self.records) >= LIMIT:
                return self.refuse(record, title, f"more than {LIMIT} things depend on each other")
            own = Record(title, getattr(value, "__qualname__", None) or record.where, record.inside)
            number = self.numbers[id(value)] = self.add(own)
            self.held.append(value)
            try:
                make(own)
            except RecursionError:
                raise
            except Exception as error:  # an object that does not even let itself be looked at
                own.lines.append(self.refuse(own, title, f"{type(error).__name__}: {error}"))
        return record.link(number)

    def add(self, record: Record) -> int:
        self.records.append(record)
        return len(self.records)

    def owned(self, value: Any, owned: str, record: Record, name: str) -> str:
        """A thing known by its owner's name. Some read the world; some are switches, whose value counts."""
        if owned in resolve.SWITCHES:
            return f"{owned}() = {self.value(self.watch.call(value), record, name)}"
        module, _, short = owned.partition(" ")[0].rpartition(".")
        if module == "builtins" and short not in resolve.BUILTINS and not _is_exception(value):
            return self.refuse(record, name, "a builtin whose result does not depend on its arguments alone")
        if owned in resolve.STATE_NAMES or module.partition(".")[0] in resolve.STATE:
            return self.refuse(record, name, f"{owned} reads the world outside the program")
        return owned

    def operator(self, operator: tuple[str, str]) -> str:
        """An operator of torch by name; the caller follows those outside torch's namespaces."""
        name, overload = operator
        if name.partition("::")[0] not in _BUILTIN_NAMESPACES:
            self.operators[name] = None
        return f"operator {name} {overload}".rstrip()

    def refuse(self, record: Record, name: str, why: str) -> str:
        """Note that `name` could not be followed."""
        self.opaque.append(Opaque(record.where, name, why))
        return "opaque"

    # --- code

    def text(self, text: Text, fn: types.FunctionType, record: Record) -> None:
        """The body of a function and what each of its names means."""
        record.lines.append(text.body)
        for number, ref in enumerate(text.refs):
            meaning = self.reference(ref, fn, record)
            record.lines.append(f"${number}{' if unassigned' if ref.soft else ''} = {meaning}")

    def reference(self, ref: Ref, fn: types.FunctionType, record: Record) -> str:
        """What one name in `fn` means."""
        root = resolve.lookup(fn, ref.root, self.watch)
        spelled = ".".join([ref.root.removeprefix(bytecode.IMPORT), *ref.attrs])
        if root is MISSING:
            if ref.root.startswith(bytecode.IMPORT) and not ref.soft:
                return self.refuse(record, spelled, "imported in the body and not loaded yet")
            return "unbound"
        value, rest = resolve.follow(root, ref.attrs, self.watch)
        if (variable := resolve.variable(value, rest)) is not None:
            return self.variable(variable, record)
        if rest and rest[-1].startswith(bytecode.LITERAL):
            rest = rest[:-1]
        tail = "".join([f".{attr}" for attr in rest])
        if isinstance(value, types.ModuleType) and ref.soft:
            return "module"
        if isinstance(value, types.ModuleType) and ref.root.startswith(bytecode.IMPORT) and _owned_module(value):
            return f"module {value.__name__}"
        return self.constant(value, record, f"constant {fn.__module__}.{spelled}", spelled) + tail

    def variable(self, name: str, record: Record) -> str:
        """An environment variable by its value's digest: the value may be a secret, and keys are stored and shared."""
        value = self.watch.call(lambda: os.environ.get(name))
        own = Record(f"environment variable {name}", record.where, record.inside)
        number = self.add(own)
        own.lines.append("unset" if value is None else Digest.of(value.encode(errors="surrogateescape")).hex)
        return record.link(number)

    def function(self, fn: types.FunctionType, record: Record) -> None:
        """A plain Python function: its code, defaults and names."""
        self.watch.function(fn)
        names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        defaults = fn.__defaults__ or ()
        pairs = [*zip(names[len(names) - len(defaults) :], defaults, strict=True), *(fn.__kwdefaults__ or {}).items()]
        self.defaults(pairs, fn, record)
        self.attributes(fn, record)
        self.text(bytecode.analyse(fn.__code__), fn, record)

    def attributes(self, fn: types.FunctionType, record: Record) -> None:
        """What the program has put into a function, which may be read wherever the function is handed to."""
        own = vars(fn)
        self.watch.keys(own, own)
        for name in own.keys() - _MARKS:
            self.watch.name(own, name)
        for name, value in sorted(own.items()):
            if name not in _MARKS:
                text = self.constant(value, record, f"attribute {fn.__qualname__}.{name}", name)
                record.lines.append(f"attribute {name} = {text}")

    def defaults(self, pairs: Iterable[tuple[str, Any]], fn: Any, record: Record) -> None:
        for name, value in pairs:
            text = self.constant(value, record, f"default {fn.__qualname__}.{name}", name)
            record.lines.append(f"default {name} = {text}")

    def methods(self, record: Record, methods: dict[str, Any]) -> None:
        """Functions of a class whose instances are constants: enumerations, tuples, dataclasses."""
        for name, value in methods.items():
            record.lines.append(f"{name} = {self.value(value, record, name)}")


_MARKS = frozenset({"__wrapped__"})
"""What decorators note for `inspect`. Code that reads one by its name has it followed as an attribute."""

_NO_METHODS = frozenset({type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset})


def _methods(cls: type, watch: Watch) -> dict[str, Any]:
    """User-written code of `cls` and its bases; what dataclasses and named tuples generate has no file."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if resolve.owner(base) is not None:
            continue
        watch.keys(base.__dict__, base.__dict__)
        for name, value in resolve.names_of(base).items():
            function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if isinstance(function, functools.cached_property):
                function = function.func
            code = getattr(function, "__code__", None)
            if code is not None and not code.co_filename.startswith("<") and not resolve.in_owned_file(code):
                watch.name(base.__dict__, name)
                found.setdefault(name, function)
    return found


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _owned_module(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] in resolve.OWNED


def _operator(value: Any) -> tuple[str, str] | None:
    """Name and overload if `value` is an operator of torch or the object that defines a custom one."""
    cls = type(value)
    if cls.__module__ == "torch._ops":
        if cls.__name__ == "OpOverload":
            return value._schema.name, value._overloadname
        if cls.__name__ == "OpOverloadPacket":
            return value._qualified_op_name, ""
        if hasattr(value, "_name") and isinstance(value._name, str):
            return f"higher_order::{value._name}", ""
    if cls.__module__ == "torch._library.custom_ops" and cls.__name__ == "CustomOpDef":
        return value._qualname, ""
    return None


_BUILTIN_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "higher_order", "_c10d_functional", "c10d_functional", "c10d", "inductor",
     "inductor_prims", "quantized", "quantized_decomposed", "mkldnn", "mkl", "onednn", "rngprims", "_dtensor",
     "streams", "profiler", "fsdp", "symm_mem", "torchbind", "flex_lib"}
)  # fmt: skip

__all__ = ["Record", "Walk", "source"]
