"""The canonical text of an FX graph: what the key sees in place of the graph itself.

The graph is left as it is. In the text

* nodes are numbered by position, so names that Dynamo takes from the caller's locals
  vanish (`keep_names` retains them, for graphs that a user's pass will read);
* `kernel_idx` and `constant_args_idx` of a user-kernel node, which are indices into a
  process-local side table, become the kernel's digest and the constants' digest, at that
  node and in nested graph modules too. Rewriting is on nodes of the two kernel wrapper
  operators alone: a user's argument that happens to be called `kernel_idx` stays;
* nested graph modules are printed in place, once each, in order of first use;
* tensors held by the graph are printed as `leaf` encodes them.

Grammar, one node a line::

    graph   = "graph" number "{" line* "}"
    line    = "%" number " = " op " " target "(" args ")" [" !" meta]

While printing, the walk collects what the text only names and whose code is baked into
the artifact: user kernels, operators and Python functions. The caller turns those into
parts of the key.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from kcache.closure import fingerprint
from kcache.digest import Digest
from kcache.errors import Opaque

BUILTIN_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "higher_order", "_c10d_functional", "c10d_functional", "c10d", "inductor",
     "inductor_prims", "quantized", "quantized_decomposed", "mkldnn", "mkl", "onednn", "rngprims", "_dtensor",
     "streams", "profiler", "fsdp", "symm_mem", "torchbind", "flex_lib"}
)  # fmt: skip
"""Operator namespaces that torch itself defines; their code is in torch's own source key."""

META_THAT_COMPILES = (
    "custom", "recompute", "partitioner_tag", "must_be_in_backward", "memory_budget", "is_wrapped",
    "user_cache_hash", "dislike_padding", "nested_region_config", "stream",
)  # fmt: skip
"""Node metadata that passes of AOTAutograd or Inductor read and that changes generated code."""

Leaf = Callable[[Any], bytes]


@dataclass
class Canonical:
    """A graph's text and what it refers to. Digests in the text name what the lists hold."""

    text: str
    kernels: list[Any] = field(default_factory=list)
    """User kernels, as found in the side table, once each."""
    operators: list[torch._ops.OpOverload] = field(default_factory=list)
    """Operators outside torch's own namespaces, once each."""
    functions: list[Any] = field(default_factory=list)
    """Python callables outside torch that the graph calls or holds."""


def canonical(gm: torch.fx.GraphModule, leaf: Leaf, *, keep_names: bool = False) -> Canonical:
    """Canonical form of `gm` and every graph module below it.

    `leaf` encodes tensors and whatever else only torch's own key pickler understands.
    Raises `Opaque` for an argument that cannot be encoded and for a kernel whose closure
    cannot be followed.
    """
    printer = _Printer(leaf, keep_names)
    printer.module(gm)
    return Canonical("\n".join(printer.lines), printer.kernels, printer.operators, printer.functions)


class _Printer:
    def __init__(self, leaf: Leaf, keep_names: bool) -> None:
        self.leaf = leaf
        self.keep_names = keep_names
        self.lines: list[str] = []
        self.kernels: list[Any] = []
        self.operators: list[torch._ops.OpOverload] = []
        self.functions: list[Any] = []
        self._modules: dict[int, int] = {}
        self._seen: set[int] = set()
        self._wrappers = _kernel_wrappers()

    def module(self, gm: torch.fx.GraphModule) -> str:
        if id(gm) in self._modules:
            return f"graph{self._modules[id(gm)]}"
        name = f"graph{self._modules.setdefault(id(gm), len(self._modules))}"
        body = [f"{name} {{", *self._checkpoint(gm)]
        number: dict[torch.fx.Node, int] = {}
        for node in gm.graph.nodes:
            number[node] = len(number)
            body.append(self._line(gm, node, number))
        # saved-tensor hooks and the like hang below the module and no node names them
        for child_name, child in gm.named_children():
            if isinstance(child, torch.fx.GraphModule) and id(child) not in self._modules:
                body.append(f"held {child_name} {self.module(child)}")
        self.lines += [*body, "}"]
        return name

    def _checkpoint(self, gm: torch.fx.GraphModule) -> list[str]:
        """What a selective checkpoint saves: its `context_fn`, and the hash that the user promised for it.

        The promise alone counts where the function cannot be followed.
        """
        chosen = gm.meta.get("_checkpoint_context_fn")
        if chosen is None:
            return []
        promised = getattr(chosen, "cache_hash", None)
        if promised is not None and fingerprint(chosen).opaque:
            return [f"saves {promised!r}"]
        return [f"saves {promised!r} {self._callable(chosen)}"]

    def _line(self, gm: torch.fx.GraphModule, node: torch.fx.Node, number: Mapping[torch.fx.Node, int]) -> str:
        show = lambda value: self._value(value, number)  # noqa: E731
        target = self._target(gm, node)
        if node.target in self._wrappers and node.op == "call_function":
            arguments = self._kernel_arguments(node, show)
        else:
            arguments = [show(a) for a in node.args] + [f"{k}={show(v)}" for k, v in node.kwargs.items()]
        name = f" {node.name}" if self.keep_names else ""
        meta = {k: node.meta[k] for k in META_THAT_COMPILES if node.meta.get(k) is not None}
        tail = f" !{show(meta)}" if meta else ""
        return f"%{number[node]}{name} = {node.op} {target}({', '.join(arguments)}){tail}"

    def _kernel_arguments(self, node: torch.fx.Node, show: Callable[[Any], str]) -> list[str]:
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
        constants = kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"])
        self._remember(kernel, self.kernels)
        replaced = {
            "kernel_idx": f"kernel:{followed(kernel).hex}",
            "constant_args_idx": show(dict(sorted(constants.items()))),
        }
        return [f"{k}={replaced[k] if k in replaced else show(v)}" for k, v in node.kwargs.items()]

    def _target(self, gm: torch.fx.GraphModule, node: torch.fx.Node) -> str:
        if node.op == "placeholder":
            return "symint" if node.type is torch.SymInt else ""
        if node.op == "output":
            return ""
        if node.op == "call_method":
            return repr(node.target)
        if node.op in ("get_attr", "call_module"):
            return self._held(_attribute(gm, str(node.target)))
        return self._callable(node.target)

    def _held(self, value: Any) -> str:
        if isinstance(value, torch.fx.GraphModule):
            return self.module(value)
        if isinstance(value, torch.Tensor):
            return f"tensor:{Digest.of(self.leaf(value)).hex}"
        if isinstance(value, torch.nn.Module):
            return f"module:{Digest.of(self.leaf(value)).hex}"
        return self._value(value, {})

    def _callable(self, target: Any) -> str:
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace not in BUILTIN_NAMESPACES:
                self._remember(target, self.operators)
            return str(target)
        if isinstance(target, torch._ops.OpOverloadPacket):
            for overload in target.overloads():
                self._callable(getattr(target, overload))
            return str(target)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return f"higher_order.{target.name()}"
        if owned_by_torch(target):
            return name_of(target)
        self._remember(target, self.functions)
        return f"function:{followed(target).hex}"

    def _remember(self, value: Any, where: list[Any]) -> None:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            where.append(value)

    def _value(self, value: Any, number: Mapping[torch.fx.Node, int]) -> str:
        show = lambda inner: self._value(inner, number)  # noqa: E731
        if isinstance(value, torch.fx.Node):
            return f"%{number[value]}"
        if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return f"{type(value).__name__}:{value}"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return f"{type(value).__name__}:{value}"
        if isinstance(value, slice):
            return f"slice({show(value.start)}, {show(value.stop)}, {show(value.step)})"
        if isinstance(value, enum.Enum):
            return f"{type(value).__module__}.{type(value).__qualname__}.{value.name}"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{show(k)}: {show(v)}" for k, v in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            fields = f"{type(value).__qualname__}" if hasattr(value, "_fields") else ""
            return f"{fields}{'[' if isinstance(value, list) else '('}{', '.join(map(show, value))})"
        if isinstance(value, (set, frozenset)):
            return "set(" + ", ".join(sorted(map(show, value))) + ")"
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            return self._held(value)
        if callable(value) or isinstance(value, types.ModuleType):
            return self._callable(value)
        return f"{type(value).__module__}.{type(value).__qualname__}:{Digest.of(self.leaf(value)).hex}"


def owned_by_torch(target: Any) -> bool:
    """Whether `target` is code of torch's, the standard library's operators or builtins.

    Decided from the object: a user's function put into torch's namespace, under torch's name
    even, is not torch's.
    """
    if isinstance(target, DESCRIPTORS):
        return _is_library(target.__objclass__.__module__)
    code = getattr(target, "__code__", None)
    if isinstance(code, types.CodeType):
        return bool(code.co_filename.startswith(torch.__path__[0]))
    module_name = getattr(target, "__module__", None) or ""
    if isinstance(target, types.BuiltinFunctionType):
        return not module_name or _is_library(module_name)
    if not _is_library(module_name):
        return False
    found: Any = sys.modules.get(module_name)
    for step in getattr(target, "__qualname__", getattr(target, "__name__", "")).split("."):
        found = getattr(found, step, None)
    return found is target


DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "_operator", "operator", "builtins", "math", "functorch")


def name_of(target: Any) -> str:
    """Module and qualified name of something that torch or Python owns."""
    module = target.__objclass__.__module__ if isinstance(target, DESCRIPTORS) else target.__module__
    return f"{module}.{getattr(target, '__qualname__', None) or target.__name__}"


def followed(target: Any) -> Digest:
    """Digest of `target`'s closure. Raises its first `Opaque` where it cannot be followed."""
    found = fingerprint(target)
    if found.opaque:
        raise found.opaque[0]
    return found.digest


def graph_modules(gm: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """`gm` and every graph module below it."""
    return (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule))


def _attribute(root: Any, path: str) -> Any:
    for step in path.split("."):
        try:
            root = getattr(root, step)
        except AttributeError as error:
            raise Opaque("graph", path, "the graph names an attribute it does not have") from error
    return root


def _kernel_wrappers() -> frozenset[Any]:
    try:
        from torch._higher_order_ops.triton_kernel_wrap import (
            triton_kernel_wrapper_functional,
            triton_kernel_wrapper_mutation,
        )
    except ImportError:
        return frozenset()
    return frozenset({triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation})
