"""From a name in a function to the object it means, and to who owns that object.

Names resolve as they do when the function runs: closure cells, then globals, then
builtins. An attribute chain is followed while it is static: through modules, classes,
enums and plain namespaces. Each read goes through a `Watch`.

Ownership is a fact about the object and never about the path to it: what is found at its
own `module.qualname` and was compiled from that distribution's files is known by that name
and the distribution's version, which is in the environment part of each key.
"""

from __future__ import annotations

import builtins
import enum
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from kcache.bytecode import IMPORT, LITERAL
from kcache.watch import MISSING, Watch, read

OWNED = frozenset(sys.stdlib_module_names) | {"torch", "triton", "functorch", "torchgen", "kcache"} - {"__main__"}
"""Top-level packages whose version is in the environment part of a key."""

BUILTINS = frozenset(
    {"abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod", "complex",
     "delattr", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hex",
     "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "memoryview", "min", "next", "object",
     "oct", "ord", "pow", "print", "property", "range", "repr", "reversed", "round", "set", "setattr", "slice",
     "sorted", "staticmethod", "str", "sum", "super", "tuple", "type", "zip", "NotImplemented", "Ellipsis",
     "__debug__", "__build_class__"}
)  # fmt: skip
"""Builtins whose result depends on their arguments alone; `getattr` on what is followed whole is covered by that."""

STATE = frozenset(
    {
        "time",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "urllib",
        "uuid",
        "tempfile",
        "shutil",
        "glob",
        "ctypes",
        "_random",
        "posix",
        "nt",
        "_socket",
    }
)
"""Modules of the standard library whose functions read the world outside the process."""

STATE_NAMES = frozenset(
    {"os.getenv", "io.open", "_io.open", "sys._getframe", "inspect.currentframe", "inspect.stack", "inspect.getsource",
     "importlib.import_module", "genericpath.exists", "genericpath.isfile", "genericpath.isdir", "genericpath.getsize",
     "genericpath.getmtime", "torch.initial_seed", "torch.random.initial_seed", "torch.seed", "torch.random.seed",
     "pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath", "typing.get_type_hints", "inspect.get_annotations",
     "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
     "torch.get_rng_state", "torch.random.get_rng_state", "torch.load", "torch.serialization.load"}
)  # fmt: skip
"""Functions elsewhere that read it."""

SWITCHES = frozenset(
    {"torch.is_grad_enabled", "torch.is_inference_mode_enabled", "torch.is_autocast_enabled", "torch.get_default_dtype",
     "torch.get_num_threads", "torch.are_deterministic_algorithms_enabled", "torch.get_float32_matmul_precision",
     "torch.is_deterministic_algorithms_warn_only_enabled", "torch.is_autocast_cache_enabled",
     "torch.get_default_device"}
)  # fmt: skip
"""Functions without arguments that read a process-wide switch: their value is taken in place of their name."""

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
                types.GetSetDescriptorType, types.MemberDescriptorType)  # fmt: skip


def lookup(fn: types.FunctionType, name: str, watch: Watch) -> Any:
    """What `name` means in `fn`, or `MISSING`."""
    if name.startswith(IMPORT):
        return _imported(fn, name.removeprefix(IMPORT), watch)
    free = fn.__code__.co_freevars
    if name in free and fn.__closure__ is not None:
        return watch.cell(fn.__closure__[free.index(name)])
    value = watch.name(fn.__globals__, name)
    return value if value is not MISSING else watch.name(vars(builtins), name)


def _imported(fn: types.FunctionType, name: str, watch: Watch) -> Any:
    level = len(name) - len(name.lstrip("."))
    if level:
        package = str(fn.__globals__.get("__package__") or "").split(".")
        name = ".".join([*package[: len(package) - level + 1], *filter(None, [name[level:]])])
    if name not in sys.modules and name.partition(".")[0] in OWNED:
        try:
            __import__(name)
        except Exception:
            return MISSING
    return watch.name(sys.modules, name)


def follow(value: Any, attrs: tuple[str, ...], watch: Watch) -> tuple[Any, tuple[str, ...]]:
    """Follow `attrs` as far as they are static; returns the value reached and the attributes left."""
    for at, attr in enumerate(attrs):
        if attr.startswith(LITERAL):
            return value, attrs[at:]
        found = _step(value, attr, watch)
        if found is None:
            return value, attrs[at:]
        value = found[0]
        if value is MISSING:
            return value, attrs[at + 1 :]
    return value, ()


def _step(value: Any, attr: str, watch: Watch) -> tuple[Any] | None:
    if isinstance(value, types.ModuleType):
        return (_module_attribute(value, attr, watch),)
    if isinstance(value, type):
        return _class_attribute(value, attr, watch)
    if isinstance(value, enum.Enum):
        return (watch.attribute(value, attr),) if attr in ("value", "name") else None
    if isinstance(value, types.SimpleNamespace):
        return (watch.name(vars(value), attr),)
    if isinstance(value, types.FunctionType):
        return _function_attribute(value, attr, watch)
    if isinstance(value, tuple) and attr in getattr(value, "_fields", ()):
        return (getattr(value, attr),)
    return _instance_attribute(value, attr, watch)


def _module_attribute(module: types.ModuleType, attr: str, watch: Watch) -> Any:
    found = watch.name(vars(module), attr)
    if found is MISSING:  # a module-level __getattr__, or a submodule not yet bound
        found = watch.attribute(module, attr)
    return found


def _class_attribute(cls: type, attr: str, watch: Watch) -> tuple[Any] | None:
    """The attribute, unless it is code that may reach the rest of the class: then the class as a whole is meant."""
    for base in cls.__mro__:
        found = watch.name(base.__dict__, attr)
        if found is MISSING:
            continue
        if isinstance(cls, enum.EnumMeta):
            return (watch.attribute(cls, attr),) if attr in cls.__members__ else None
        if isinstance(found, staticmethod):
            return (found.__func__,)
        if isinstance(found, (classmethod, property, types.FunctionType)) and owner(cls) is None:
            return None
        return (watch.attribute(cls, attr) if owner(cls) is not None else found,)
    return (watch.attribute(cls, attr),) if owner(cls) is not None else None


def _function_attribute(fn: types.FunctionType, attr: str, watch: Watch) -> tuple[Any] | None:
    """What a program has put into a function, or what is said of it in its text."""
    own = watch.name(vars(fn), attr)
    if own is not MISSING:
        return (own,)
    return (watch.attribute(fn, attr),) if attr in _SAID and owner(fn) is None else None


_SAID = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__")


def _instance_attribute(value: Any, attr: str, watch: Watch) -> tuple[Any] | None:
    """An attribute that is plain data. A switch of torch or Triton is read as it is now."""
    if is_owned_instance(value):
        found = read(value, attr)
        return (watch.attribute(value, attr),) if type(found) in (bool, int, float, str, type(None)) else None
    own = getattr(value, "__dict__", None)
    if type(own) is not dict or attr not in own or hasattr(type(value), "__getattr__"):
        return None
    if getattr(type(value), "__getattribute__", None) is not object.__getattribute__ or hasattr(type(value), attr):
        return None
    return (watch.name(own, attr),) if type(own[attr]) in (bool, int, float, str, type(None)) else None


def variable(value: Any, attrs: tuple[str, ...]) -> str | None:
    """Name of the environment variable that a chain reads which leads to `value` and has `attrs` left."""
    if not attrs or not attrs[-1].startswith(LITERAL):
        return None
    reads = attrs[:-1] in ((), ("get",)) if value is os.environ else value is os.getenv and attrs[:-1] == ()
    return attrs[-1].removeprefix(LITERAL) if reads else None


def is_owned_instance(value: Any) -> bool:
    """Whether `value` is an instance of a class of torch, Triton or the standard library (builtin types aside)."""
    cls = type(value)
    return cls.__module__ != "builtins" and _top(cls.__module__) in OWNED and owner(cls) is not None


def owner(value: Any) -> str | None:
    """Qualified name of a function or class that its distribution's version determines, else None."""
    if isinstance(value, types.FunctionType):
        return _owned(value, value.__module__, value.__qualname__) if in_owned_file(value.__code__) else None
    if isinstance(value, type):
        return _owned(value, value.__module__, value.__qualname__)
    if isinstance(value, types.BuiltinFunctionType):
        return _builtin(value)
    if isinstance(value, _DESCRIPTORS):
        return f"{value.__objclass__.__module__}.{value.__objclass__.__qualname__}.{value.__name__}"
    inner = getattr(value, "fn", None)
    if isinstance(inner, types.FunctionType) and in_owned_file(inner.__code__):  # Triton's own jitted functions
        return _owned(value, inner.__module__, inner.__qualname__)
    return _compiled(value)


def _owned(value: Any, module: Any, qualname: str) -> str | None:
    if not isinstance(module, str) or _top(module) not in OWNED:
        return None
    found: Any = sys.modules.get(module)
    for step in qualname.split("."):
        found = read(found, step)
    return f"{module}.{qualname}" if found is value else None


def _builtin(value: Any) -> str | None:
    """A function written in C. A bound method of a value is not one: the value counts."""
    holder = value.__self__
    bound = type(holder)
    if (
        holder is None
        or isinstance(holder, types.ModuleType)
        or bound.__name__ == "PyCapsule"
        or "pybind11" in bound.__module__
    ):
        module = value.__module__ or getattr(holder, "__name__", "")
    elif isinstance(holder, type):
        module = holder.__module__
    else:
        return None
    return f"{module}.{value.__qualname__}{_version(module)}"


def _compiled(value: Any) -> str | None:
    """Functions of extension modules that are no Python functions: ufuncs, Cython functions."""
    if type(value).__name__ in (
        "ufunc",
        "cython_function_or_method",
        "fused_cython_function",
        "instancemethod",
        "nb_func",
    ):
        module = getattr(value, "__module__", None) or type(value).__module__
        return f"{module}.{getattr(value, '__qualname__', value.__name__)}{_version(module)}"
    return None


def _version(module: str) -> str:
    top = _top(module)
    return "" if top in OWNED or not top else f" {distribution_version(top)}"


@cache
def distribution_version(top: str) -> str:
    """Version of the installed distribution that provides the package `top`."""
    version = getattr(sys.modules.get(top), "__version__", None)
    return version if isinstance(version, str) else "?"


def in_owned_file(code: types.CodeType) -> bool:
    """Whether `code` was compiled from a file of torch, Triton, kcache or the standard library."""
    return _owned_file(code.co_filename)


@lru_cache(maxsize=4096)
def _owned_file(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    if "site-packages" not in filename and filename.startswith(_stdlib()):
        return True
    return any(filename.startswith(root) for root in map(_root, ("torch", "triton", "kcache")) if root)


@lru_cache(maxsize=1)
def _stdlib() -> tuple[str, ...]:
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    return tuple(sorted({p + os.sep for p in paths} | {os.path.realpath(p) + os.sep for p in paths}))


def _root(top: str) -> str:
    file = getattr(sys.modules.get(top), "__file__", None)
    return os.path.dirname(file) + os.sep if file else ""


def _top(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


def names_of(cls: type) -> Mapping[str, Any]:
    """The class's own dictionary, without what Python and decorators keep there for themselves."""
    return {k: v for k, v in vars(cls).items() if k not in _CLASS_KEYS}


_CLASS_KEYS = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__",
     "__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_params__", "__dataclass_fields__",
     "__parameters__", "__orig_bases__", "__annotate__", "__annotate_func__", "__annotations_cache__",
     "_backward_cls", "_compiled_autograd_backward_state", "hash_attrs"}
)  # fmt: skip
