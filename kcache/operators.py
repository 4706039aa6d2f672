"""The Python that belongs to an operator and is baked into an artifact that uses it.

A graph names an operator; the compiled artifact contains what tracing found behind it: a
`triton_op`'s body, a `custom_op`'s fake and backward, a CompositeImplicit implementation,
a registered decomposition. `behind` lists those functions by role. The implementation of
a `custom_op` is not among them: generated code calls it at run time.

Functions registered through `torch.library.Library.impl` live in C++ only, so they are
recorded from `enable()` on (`LOW_LEVEL`). An operator that was registered from Python
earlier is opaque, and says so.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from kcache.closure import fingerprint
from kcache.digest import Part
from kcache.errors import Opaque
from kcache.graph import BUILTIN_NAMESPACES

LOW_LEVEL: dict[tuple[str, str], Any] = {}
"""(`namespace::name`, dispatch key) -> function, as seen by the seam on `Library.impl`."""

_AT_RUN_TIME = frozenset({"CPU", "CUDA", "XPU", "MPS", "HPU", "CompositeExplicitAutograd", "BackendSelect"})
"""Dispatch keys whose kernels generated code calls; they are not baked in."""

_OPDEF_ROLES = ("_abstract_fn", "_backward_fn", "_setup_context_fn", "_vmap_fn")


def parts(operators: Iterable[torch._ops.OpOverload]) -> list[Part]:
    """Parts for the schema and every followed function of `operators`, and of operators that those call.

    Raises `Opaque` for the first that cannot be followed.
    """
    found: list[Part] = []
    queue, seen = list(operators), set()
    while queue:
        op = queue.pop(0)
        if op._name in seen:
            continue
        seen.add(op._name)
        found.append(Part.of(f"operator {op._name}", str(op._schema)))
        for role, function in behind(op):
            print_ = fingerprint(function)
            if print_.opaque:
                why = print_.opaque[0]
                raise Opaque(f"operator {op._name} {role} → {why.where}", why.name, why.why)
            found.append(Part(f"operator {op._name} {role}", print_.digest, print_.listing))
            queue += [inner for name in print_.operators for inner in overloads(name)]
    return found


def overloads(name: str) -> list[torch._ops.OpOverload]:
    """Every overload of the operator called `namespace::name`, torch's own left out."""
    namespace, _, rest = name.partition("::")
    if namespace in BUILTIN_NAMESPACES or not rest:
        return []
    packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    if packet is None:
        raise Opaque("operators", name, "no such operator")
    return [getattr(packet, overload) for overload in packet.overloads()]


def behind(op: torch._ops.OpOverload) -> list[tuple[str, Any]]:
    """(role, function) for all Python baked into an artifact that calls `op`, in a fixed order.

    Raises `Opaque` for an operator registered from Python before kcache saw it.
    """
    from torch._decomp import global_decomposition_table
    from torch._library import custom_ops, simple_registry

    name, found = op._schema.name, []
    definition = custom_ops.OPDEFS.get(name)
    if definition is not None:
        found += [(role.strip("_"), getattr(definition, role, None)) for role in _OPDEF_ROLES]
        dispatch = getattr(definition, "_torch_dispatch_fns", {})
        found += [(f"torch_dispatch {cls.__qualname__}", fn) for cls, fn in dispatch.items()]
    entry = simple_registry.singleton._data.get(name)
    if entry is not None:
        fake = getattr(entry.fake_impl, "kernel", None)
        found += [("fake", fake)] if definition is None else []
        rules = getattr(entry.torch_dispatch_rules, "_data", {})
        found += [(f"torch_dispatch rule {getattr(cls, '__qualname__', cls)}", fn) for cls, fn in rules.items()]
    for table in (op.py_kernels, getattr(op, "python_key_table", {}), getattr(op, "functorch_table", {})):
        found += [(f"kernel {key}", fn) for key, fn in table.items()]
    for kind, table in global_decomposition_table.items():
        found += [(f"decomposition {kind}", table[op])] if op in table else []
    low = [(key, fn) for (low_name, key), fn in LOW_LEVEL.items() if low_name in (name, op._name)]
    found += [(f"impl {key}", fn) for key, fn in low if key not in _AT_RUN_TIME]
    if definition is None and not low and entry is None and _registered_from_python(name):
        raise Opaque(f"operator {op._name}", name, "registered from Python before kcache.enable(); set KCACHE=1")
    functions = [(role, fn) for role, wrapper in found if wrapper is not None for fn in user_functions(wrapper)]
    return sorted(functions, key=lambda pair: pair[0])


def user_functions(wrapper: Any) -> Iterator[Any]:
    """The functions outside torch that `wrapper` is or, where torch wrapped them, closes over."""
    yield from _peel(wrapper, set())


def _peel(value: Any, seen: set[int]) -> Iterator[Any]:
    value = getattr(value, "func", value) if type(value).__module__.startswith("torch.") else value
    if isinstance(value, types.MethodType):
        value = value.__func__
    if id(value) in seen or not callable(value) or isinstance(value, type):
        return
    seen.add(id(value))
    if not isinstance(value, types.FunctionType):
        if not type(value).__module__.startswith("torch."):
            yield value
        return
    if not value.__code__.co_filename.startswith(torch.__path__[0]):
        yield value
        return
    for cell in value.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a cell that was never filled holds nothing
            continue
        yield from _peel(content, seen)


def _registered_from_python(name: str) -> bool:
    """Whether torch's dispatcher says that a `.py` file registered a kernel for `name`."""
    dump: str = torch._C._dispatch_dump(name)
    return any(".py:" in line for line in dump.splitlines() if not line.startswith(("name:", "schema:", "debug:")))
