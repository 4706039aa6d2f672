"""From torch's details objects to descriptions: the recipes of the `aot` and `fx` keys.

Torch gathers what a compile depends on in a details object and pickles it into a hash.
The recipe takes every attribute of that object and replaces only what it can say at
least as finely: the graph by its canonical text, kernel sources by closure digests, the
argument sources of AOTAutograd by their positions, the C++ compiler's name by what it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from kcache import environment, listing, operators, tables
from kcache.closure import fingerprint
from kcache.digest import Digest, Part
from kcache.graph import Canonical, canonical
from kcache.hooks import configured, lift, printed, session
from kcache.key import Description

Leaf = Callable[[Any], bytes]

REPLACED = (
    "gm", "aot_config", "user_defined_triton_source", "triton_kernel_source_codes", "inductor_config", "example_inputs",
)  # fmt: skip

AOT_CONFIG_LEFT_OUT = frozenset(
    {
        "fw_compiler", "bw_compiler", "inference_compiler", "partition_fn",  # Inductor's own, in torch's source key
        "decompositions",  # the tables are parts of their own
        "aot_id", "cache_info",  # names of this process's compile
        "aot_autograd_arg_pos_to_source",  # said by position, below
    }
)  # fmt: skip

PER_COMPILE = frozenset(
    {
        "fx_kwargs", "inputs_to_check", "default_cuda_device_index", "cpp_runtime_thread_count",
        "var_to_hint_override", "cudagraph_override", "cudagraph_annotation",
        "region_activation_memory_budget", "saved_tensors_hooks_fx_wrap_cache_hashes", "sac_context_fn_hashes",
    }
)  # fmt: skip
"""Attributes of a details object that belong to one graph and cannot be taken again without it."""


def describe(details: Any, leaf: Leaf, layer: str, compiler: Callable[[], str]) -> Description:
    """Description of the compile that torch gathered in `details`.

    `leaf` is torch's key pickler, `compiler` says what the C++ compiler is. Raises `Opaque`
    where something that is baked into the artifact cannot be followed.
    """
    keep_names = layer == "fx" or bool(torch._inductor.config.pre_grad_custom_pass)
    graph = canonical(details.gm, leaf, keep_names=keep_names)
    classes = subclasses(details.example_inputs)

    def live(config: Mapping[str, Any]) -> list[Part]:
        held = configured.code(config)
        return [*code_parts(graph, classes), *held, *tables.parts(), *environment.holes(_key_env(), leaf)]

    def now() -> list[Part]:
        return [*again(leaf, compiler), *live(settings().inductor_config)]

    keyed = list(details.example_inputs)
    if layer == "aot":  # what a symbol is called goes back to the caller's argument names
        keyed = symbols_by_position(keyed)
    fixed = [
        inputs_part(details.example_inputs, keyed, leaf),
        Part("layer", Digest.of(layer.encode())),
        Part.of("graph", graph.text, readable=True),
        *environment.of_details(details, leaf, REPLACED),
        configured.values(details, leaf, compiler),
    ]
    if graph.kernels:
        fixed.append(Part.of("link", printed.mode()))
    if assumed := assumptions():
        fixed.append(Part.of("assumptions", assumed, readable=True))
    if hasattr(details, "aot_config"):
        fixed.append(environment.settings_part("aot_config", aot_config(details.aot_config), leaf))
    return Description((*fixed, *live(details.inductor_config)), now, label(graph))


def settings() -> Any:
    """A details object of torch's for an empty graph: the settings as they are now."""
    from torch._inductor.codecache import FxGraphHashDetails

    with lift.lifted():
        return FxGraphHashDetails(torch.fx.GraphModule({}, torch.fx.Graph()), [], {}, [])


def again(leaf: Leaf, compiler: Callable[[], str]) -> list[Part]:
    """Parts of the environment as they are now, under the names they have in a description."""
    found = settings()
    return [*environment.of_details(found, leaf, {*REPLACED, *PER_COMPILE}), configured.values(found, leaf, compiler)]


def _key_env() -> Iterable[str]:
    return session.current().settings.key_env


def code_parts(graph: Canonical, classes: Iterable[type]) -> list[Part]:
    """Parts for all code that `graph` names: kernels, functions, tensor subclasses, operators."""
    parts, reached = [], list(graph.operators)
    for kind, things in (("kernel", graph.kernels), ("function", graph.functions), ("class", classes)):
        for position, thing in enumerate(things):
            found = fingerprint(thing)
            if found.opaque:
                raise found.opaque[0]
            parts.append(Part(f"{kind} {position} {found.name}", found.digest, found.listing))
            reached += [op for name in found.operators for op in operators.overloads(name)]
    return parts + operators.parts(reached)


def subclasses(inputs: Iterable[Any]) -> list[type]:
    """Tensor subclasses among the inputs that are not torch's own; their dispatch code is traced into the graph."""
    found: dict[type, None] = {}
    for value in inputs:
        if isinstance(value, torch.Tensor) and not type(value).__module__.startswith("torch."):
            if type(value) is not torch.Tensor:
                found[type(value)] = None
    return list(found)


def inputs_part(inputs: Sequence[Any], keyed: Sequence[Any], leaf: Leaf) -> Part:
    """The inputs, a line each: what a reader looks for, and a digest of all that counts, which is `keyed`."""
    rows = [
        (f"input[{number}]", Digest.of(environment.stable(value, leaf)), told(inputs[number]))
        for number, value in enumerate(keyed)
    ]
    return Part.of("example_inputs", listing.settings(rows), readable=True)


def told(value: Any) -> str:
    """An input as a reader looks at it; nothing of it that is not in the key either."""
    if not isinstance(value, torch.Tensor):
        return listing.shown(value)
    facts = {"shape": _sizes(value.shape), "dtype": value.dtype, "device": value.device.type}
    if value.layout == torch.strided:
        facts["stride"] = _sizes(value.stride())
    return listing.fields({**facts, "requires_grad": value.requires_grad})


def _sizes(sizes: Iterable[Any]) -> tuple[Any, ...]:
    """Sizes without the names of symbols, which are the caller's."""
    return tuple(size if type(size) is int else "?" for size in sizes)


def symbols_by_position(inputs: Iterable[Any]) -> list[Any]:
    """The inputs with symbolic sizes as expressions over `s0`, `s1`, … in the order of first occurrence.

    An AOT entry's guards are over argument positions, so a symbol's name, which goes back to
    the caller's argument names, means nothing to it. The `fx` key keeps the names: an FX
    entry holds expressions that are evaluated by name when it is loaded.
    """
    import sympy
    from torch._inductor.codecache import extract_tensor_metadata_for_cache_key
    from torch._subclasses.fake_tensor import FakeTensor

    renamed: dict[Any, Any] = {}

    def rename(value: Any) -> Any:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expression = value.node.expr
            for symbol in sorted(expression.free_symbols, key=str):
                renamed.setdefault(symbol, sympy.Symbol(f"s{len(renamed)}", integer=True))
            return (type(value).__name__, str(expression.xreplace(renamed)))
        if isinstance(value, (tuple, torch.Size)):
            return tuple(rename(each) for each in value)
        return value

    found = []
    for value in inputs:
        if type(value) is FakeTensor:
            meta = extract_tensor_metadata_for_cache_key(value)
            found.append({f.name: rename(getattr(meta, f.name)) for f in dataclasses.fields(meta)})
        else:
            found.append(rename(value))
    return found


def assumptions() -> str:
    """What the compile may take for granted of its symbols (`specialize_on`), a line each; nothing for most compiles.

    Torch compiles such a graph once for each case and leaves no other trace of it in what it keys.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    shapes = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    return "\n".join(sorted(map(str, getattr(shapes, "axioms", ()))))


def aot_config(config: Any) -> dict[str, Any]:
    """AOTAutograd's configuration by field; argument sources by position and kind, without the caller's names."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in AOT_CONFIG_LEFT_OUT}
    sources = config.aot_autograd_arg_pos_to_source
    return {**fields, "sources": None if sources is None else source_classes(sources)}


def source_classes(sources: list[Any]) -> list[Any]:
    """For each argument: the first position with an equal source, and the classes that its source is made of.

    What a source's name meant at run time is checked by Dynamo's guards and is not in the entry.
    """
    first: dict[str, int] = {}
    found = []
    for position, source in enumerate(sources):
        chain, link = [], source
        while link is not None:
            chain.append(type(link).__qualname__)
            link = getattr(link, "base", None)
        found.append((first.setdefault(repr(source), position), chain))
    return found


def label(graph: Canonical) -> str:
    """Names of the kernels in `graph`, once each."""
    return " ".join(dict.fromkeys(fingerprint(kernel).name for kernel in graph.kernels))
