"""The linker: a kernel and everything it names as one text that stands alone.

Every dependency is printed once: helpers and constexpr functions as functions under names
that collide with nothing, constants with their types, what Triton and torch own by its own
name. The kernel keeps its name, functions keep the names of their parameters and locals.
The text depends on nothing but the closure; each function carries a comment that says
where it came from, and nothing else is a comment.

Triton takes any constant that is reached through a module and only constexprs among those
named by themselves. So a bare name becomes a global of the text, which is refused as before,
and `module.NAME` an attribute of a module made in the text. So does `Class.NAME`, which
Triton by itself refuses.

What cannot be printed raises `Opaque`: classes, enumerations, aggregates, partial
applications, tensors, Gluon functions, and Python functions whose file was edited since it
was loaded.
"""

from __future__ import annotations

import builtins
import inspect
import symtable
import textwrap
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kcache import launcher, origin, resolve
from kcache.constants import named
from kcache.errors import Opaque
from kcache.imports import FIXED, Imports, Names
from kcache.literals import literal
from kcache.origin import Origin
from kcache.outline import Outline, agrees
from kcache.scope import Ref
from kcache.watch import MISSING, Watch

VERSION = "link 1"
"""Part of every key of something compiled from a linked text; changes when the text of a kernel does."""


@dataclass(frozen=True)
class Linked:
    """A linked kernel. Both layouts hold the same definitions."""

    name: str
    origin: str
    """`module.qualname` of the kernel."""
    root: str
    """The kernel's own function, without a decorator."""
    decorator: str
    imports: tuple[str, ...]
    definitions: tuple[str, ...]
    origins: Mapping[str, Origin] = field(compare=False)
    """By name in the text: what each function of it is. Not of a kernel's own text that was extended."""

    @property
    def module(self) -> str:
        """A module that defines the kernel as a jitted function of its name, last."""
        head = "\n".join(["import triton", "import triton.language as tl", *self.imports])
        return _joined([head, *self.definitions, f"# from {self.origin}\n{self.decorator}\n{self.root}"])

    @property
    def body(self) -> str:
        """The kernel's function first, then what it names; for a place that has the decorator and `tl` already."""
        return _joined([self.root, *(["\n".join(self.imports)] if self.imports else []), *self.definitions])


def link(kernel: Any, text: str | None = None) -> Linked:
    """Link the jitted function at the bottom of `kernel`.

    `text` stands for the kernel's own, which it may extend by parameters and by names that
    the place where it is compiled defines. Raises `Opaque` where something cannot be printed.
    """
    root = launcher.bottom(kernel)
    if not launcher.is_jitted(root):
        raise Opaque(type(kernel).__name__, type(root).__name__, "no kernel of Triton's")
    linker = _Linker(root, text)
    linked = linker.link()
    _check(linked, linker.unbound)
    return linked


class _Linker:
    def __init__(self, root: Any, text: str | None) -> None:
        self.root = root
        self.extended = text is not None
        self.watch = Watch()
        self.outlines: dict[int, Outline] = {}
        self.held: list[Any] = []
        self.unbound: set[str] = set()
        self.discover(root, text)
        taken = {name for outline in self.outlines.values() for name in outline.names}
        self.names = Names(taken)
        for name in sorted({root.fn.__name__, *self.unbound}):
            self.names.exact(name)
        self.imports = Imports(self.names)
        self.known: dict[int, str] = {id(root): root.fn.__name__}
        self.constants: dict[tuple[str, str], str] = {}
        self.holders: dict[str, str] = {}
        self.definitions: list[str] = []
        self.printed: set[str] = set()
        self.shared: dict[str, str] = {}
        self.origins: dict[str, Origin] = {}

    def link(self) -> Linked:
        root = self.root
        options = _decorator(root)
        printed = self.function(root, root.fn, root.fn.__name__)
        return Linked(
            root.fn.__name__, _origin(root.fn), printed, options, tuple(self.imports.lines()), tuple(self.definitions),
            self.origins,
        )  # fmt: skip

    # --- what is reached, before anything has a name

    def discover(self, value: Any, text: str | None = None) -> None:
        """Read the text of `value` and of every function that it names."""
        fn = value.fn if launcher.is_jit_callable(value) else value
        if id(value) in self.outlines:
            return
        self.held.append(value)
        try:
            outline = self.outlines[id(value)] = Outline(text or _text(value, fn))
        except (SyntaxError, ValueError, RecursionError) as error:
            raise Opaque(fn.__qualname__, fn.__name__, f"its text cannot be parsed: {error}") from error
        for ref in outline.refs:
            found = self.meaning(ref, fn)
            if found is None:
                self.unbound.add(ref.root)
            else:
                for each in _functions(found[0]):
                    self.discover(each)
        for default in [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]:
            for each in _functions(default):
                self.discover(each)

    def meaning(self, ref: Ref, fn: types.FunctionType) -> tuple[Any, tuple[str, ...]] | None:
        """What `ref` means in `fn` and the attributes that are not static; None if its root is not bound."""
        root = resolve.lookup(fn, ref.root, self.watch)
        if root is MISSING:
            return None
        value, rest = resolve.follow(root, ref.attrs, self.watch)
        if value is MISSING:
            raise Opaque(fn.__qualname__, ".".join([ref.root, *ref.attrs]), "there is no such attribute")
        return value, rest

    # --- printing

    def function(self, value: Any, fn: types.FunctionType, name: str) -> str:
        """Text of one function under `name`; what it names is defined before this returns."""
        outline = self.outlines[id(value)]
        if outline.folded and resolve.lookup(fn, "getattr", self.watch) is not getattr:
            raise Opaque(fn.__qualname__, "getattr", "it is not the builtin")
        for number, ref in enumerate(outline.refs):
            found = self.meaning(ref, fn)
            if found is None:
                outline.fill(number, ".".join([ref.root, *ref.attrs]))
            elif not ref.soft:
                outline.fill(number, self.reference(ref, *found, value))
            elif found[0] is not getattr(builtins, ref.root, MISSING):
                self.share(ref, self.reference(ref, *found, value))
        if value is not self.root or not self.extended:
            self.origins[name] = origin.of(value, fn, outline.function)
        return outline.printed(name, *self.signature(value, fn))

    def share(self, ref: Ref, expression: str) -> None:
        """Let the global of that name be what a local stands for while it is not assigned."""
        name = ref.root
        if ref.attrs:
            raise Opaque(self.root.fn.__qualname__, name, "an attribute of a local that may be a global")
        if self.shared.setdefault(name, expression) != expression or name in self.unbound:
            raise Opaque(self.root.fn.__qualname__, name, "two things must have this name")
        line = f"{name} = {expression}"
        if line not in self.definitions:
            self.names.exact(name)
            self.definitions.append(line)

    def signature(self, value: Any, fn: types.FunctionType) -> tuple[dict[str, str], dict[str, str]]:
        """Annotations as Triton reads them, none for Python functions, and default values; by parameter."""
        if launcher.is_jitted(value):
            annotations = {p.name: _annotation(p) for p in value.params}
            defaults = {p.name: p.default for p in value.params}
        else:
            live = inspect.signature(fn, follow_wrapped=False).parameters.values()
            annotations = {p.name: "" for p in live}
            defaults = {p.name: p.default for p in live}
        empty = inspect.Parameter.empty
        printed = {name: self.default(d, value, fn, name) for name, d in defaults.items() if d is not empty}
        return annotations, printed

    def default(self, default: Any, value: Any, fn: types.FunctionType, name: str) -> str:
        def leaf(inner: Any) -> str:
            found = self.thing(inner) if value is not self.root else None
            if found is None or id(inner) in self.outlines and found not in self.printed:
                raise Opaque(fn.__qualname__, name, f"a default value of type {named(type(inner))} cannot be printed")
            return found

        def module(wanted: str) -> str:
            if wanted not in FIXED and value is self.root:  # it may stand above the imports
                raise Opaque(fn.__qualname__, name, f"a default value of {wanted}")
            return FIXED.get(wanted) or self.imports.module(wanted)

        return literal(default, leaf, module)

    def reference(self, ref: Ref, value: Any, rest: tuple[str, ...], user: Any) -> str:
        """Expression for one name in the function `user`."""
        bare = ref.root if not ref.attrs else ""
        expression = self.thing(value, bare)
        if expression is None:
            expression = self.constant(ref, value)
        elif launcher.is_jitted(user) and not launcher.is_jit_callable(value) and not _tritons(value):
            if isinstance(value, types.FunctionType) and "." not in expression and ref.attrs:
                expression = self.attribute(ref, expression)
            elif bare and "." in expression:
                expression = self.named_constant(bare, expression)
        return expression + "".join([f".{attr}" for attr in rest])

    def thing(self, value: Any, bare: str = "") -> str | None:
        """Name of a module, a function or something owned; None for what may be a constant."""
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] in resolve.OWNED:
                return self.imports.module(value.__name__)
            raise Opaque(value.__name__, value.__name__, "a module as a value")
        if (owner := resolve.owner(value)) is not None:
            return self.imports.owned(value, owner, bare)
        if id(value) in self.outlines:
            return self.known[id(value)] if id(value) in self.known else self.defined(value)
        return None

    def defined(self, value: Any) -> str:
        """Name of a helper; its definition is printed when it is met first."""
        jitted = launcher.is_jit_callable(value)
        fn = value.fn if jitted else value
        name = self.known[id(value)] = self.names.fresh(fn.__name__)
        printed = self.function(value, fn, name)
        decorator = [_decorator(value)] if jitted else []
        self.definitions.append("\n".join([f"# from {_origin(fn)}", *decorator, printed]))
        self.printed.add(name)
        return name

    def constant(self, ref: Ref, value: Any) -> str:
        def leaf(inner: Any) -> str:
            found = self.thing(inner)
            if found is None:
                raise Opaque(self.root.fn.__qualname__, ".".join(ref[:1] + ref.attrs), f"a {named(type(inner))}")
            return found

        text = literal(value, leaf, self.imports.module)
        if not ref.attrs:
            return self.named_constant(ref.root, text)
        return text if named(type(value)) == "triton.language.core.dtype" else self.attribute(ref, text)

    def named_constant(self, wanted: str, text: str) -> str:
        name = self.constants.get((wanted, text))
        if name is None:
            name = self.constants[wanted, text] = self.names.fresh(wanted)
            self.definitions.append(f"{name} = {text}")
        return name

    def attribute(self, ref: Ref, text: str) -> str:
        """A constant that is reached through something: an attribute of a module made for it."""
        path = ".".join([ref.root, *ref.attrs[:-1]])
        key = (f"{path}.{ref.attrs[-1]}", text)
        if key not in self.constants:
            holder = self.holders.get(path)
            if holder is None or any(k[0] == key[0] for k in self.constants):
                holder = self.holders[path] = self.names.fresh(path.rpartition(".")[2])
                self.definitions.append(f'{holder} = {self.imports.module("types")}.ModuleType("{holder}")')
            self.definitions.append(f"{holder}.{ref.attrs[-1]} = {text}")
            self.constants[key] = f"{holder}.{ref.attrs[-1]}"
        return self.constants[key]


def _text(value: Any, fn: types.FunctionType) -> str:
    """Text of a function. Triton compiles the one it read; Python runs code, with which the file must agree."""
    if launcher.is_jitted(value):
        if type(value).__qualname__ != "JITFunction":
            raise Opaque(fn.__qualname__, fn.__name__, f"a {type(value).__qualname__}, which is not Triton's language")
        return str(value.src)
    try:
        text = textwrap.dedent(inspect.getsource(fn.__code__))
    except (OSError, TypeError) as error:
        raise Opaque(fn.__qualname__, fn.__name__, f"it has no text: {error}") from error
    if not agrees(text, fn):
        raise Opaque(fn.__qualname__, fn.__name__, "its file was edited since it was loaded")
    return text


def _functions(value: Any) -> list[Any]:
    """The functions to print that `value` is or holds."""
    if isinstance(value, (tuple, list)):
        return [f for each in value for f in _functions(each)]
    if isinstance(value, dict):
        return [f for pair in value.items() for each in pair for f in _functions(each)]
    if resolve.owner(value) is not None:
        return []
    return [value] if launcher.is_jit_callable(value) or isinstance(value, types.FunctionType) else []


def _decorator(value: Any) -> str:
    if not launcher.is_jitted(value):
        return "@triton.constexpr_function"
    options = [f"{name}=True" for name in ("noinline", "debug") if getattr(value, name, None)]
    return f"@triton.jit({', '.join(options)})" if options else "@triton.jit"


def _joined(blocks: list[str]) -> str:
    """The blocks with blank lines between them, but not between one assignment and the next."""
    text = blocks[0]
    for before, block in pairwise(blocks):
        text += ("\n" if "\n" not in before + block else "\n\n") + block
    return text + "\n"


def _annotation(param: Any) -> str:
    if param.is_constexpr:
        return "tl.constexpr"
    return repr(param.annotation) if param.is_const or getattr(param, "annotation_type", "") else ""


def _tritons(value: Any) -> bool:
    owner = resolve.owner(value)
    return owner is not None and owner.startswith("triton.") or isinstance(value, types.ModuleType)


def _origin(fn: Any) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


def _check(linked: Linked, unbound: set[str]) -> None:
    """Every free name of the text is defined in it, so what was overlooked cannot be answered by chance."""
    table = symtable.symtable(linked.module, "<linked>", "exec")
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    known = {*defined, *dir(builtins), *unbound}
    for inner in _tables(table):
        for symbol in inner.get_symbols():
            if symbol.is_global() and symbol.get_name() not in known:
                raise Opaque(linked.name, symbol.get_name(), "the linked text does not define it")


def _tables(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [found for child in table.get_children() for found in [child, *_tables(child)]]
