"""What torch refuses to cache although kcache's key covers it.

Torch answers "cacheable?" per higher-order operator and per function target with short
lists, and asks users for a hash where it cannot look: of a selective checkpoint's
`context_fn`, of a graph pass. kcache's key holds the bodies of `autograd.Function`, `cond`,
loops and scans (they are nested graph modules) and the closures of functions, so while a
key is being made, and only then, those count as cacheable. Everything else stays refused,
and so does a pass that says of itself, by a `uuid` of None, that it is not to be cached.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Iterator
from typing import Any

from kcache.closure import fingerprint
from kcache.errors import Opaque
from kcache.graph import followed, name_of, owned_by_torch
from kcache.hooks import session
from kcache.hooks.patch import Patches, require

COVERED = frozenset({"autograd_function_apply", "cond", "while_loop", "scan", "map_impl", "associative_scan"})
"""Higher-order operators whose bodies are graph modules in the graph, so that the canonical text holds them."""

KNOWN = frozenset(
    {
        "torch.autograd.function.FunctionCtx",
        "torch.amp.autocast_mode._enter_autocast",
        "torch.amp.autocast_mode._exit_autocast",
    }
)
"""Functions of torch that later releases let through: pure calls whose arguments are in the graph."""

PLAIN_CALLABLES = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type)

PASSES = (
    "post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass",
)  # fmt: skip
"""Settings of Inductor that hold graph passes and that torch wants a uuid for."""

_active = threading.local()


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    import torch
    from torch._functorch._aot_autograd import autograd_cache

    hop = torch._ops.HigherOrderOperator
    require(hop, "cacheable", ("self",))
    require(autograd_cache, "check_node_safe", ("node",))
    require(autograd_cache, "_get_context_fn_cache_hash", ("context_fn",))
    cacheable, check = hop.cacheable, autograd_cache.check_node_safe
    hash_of = autograd_cache._get_context_fn_cache_hash

    def _cacheable(self: Any) -> bool:
        return bool(cacheable(self)) or (getattr(_active, "on", False) and self.name() in COVERED)

    def check_node_safe(node: Any) -> None:
        try:
            check(node)
        except autograd_cache.BypassAOTAutogradCache:
            if not (getattr(_active, "on", False) and node.op == "call_function" and _function_is_covered(node.target)):
                raise

    def _get_context_fn_cache_hash(context_fn: Any) -> Any:
        promised = hash_of(context_fn)
        if promised is not None or not getattr(_active, "on", False):
            return promised
        if reasons := fingerprint(context_fn).opaque:
            session.current().bypass("aot", str(reasons[0]))
            return None
        return "in the graph's text"

    patches.replace(autograd_cache, "_get_context_fn_cache_hash", _get_context_fn_cache_hash)
    patches.replace(hop, "cacheable", _cacheable)
    patches.replace(autograd_cache, "check_node_safe", check_node_safe)


def _function_is_covered(target: Any) -> bool:
    if owned_by_torch(target):
        return name_of(target) in KNOWN
    if owned_by_torch(type(target)) and not isinstance(target, PLAIN_CALLABLES):
        return False  # an object of torch's that only looks like a function, as compiled autograd puts into its graphs
    try:
        followed(target)
    except Opaque as opaque:  # torch's own bypass is raised, and names less
        session.current().bypass("aot", str(opaque))
        return False
    return True


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """While a key is made in this thread, what the canonical graph covers is cacheable."""
    before = getattr(_active, "on", False)
    _active.on = True
    try:
        with passes_by_closure():
            yield
    finally:
        _active.on = before


@contextlib.contextmanager
def passes_by_closure() -> Iterator[None]:
    """Graph passes that are plain functions have a uuid until the block ends: the digest of their closure."""
    from torch._inductor import config

    found = {name: value for name in PASSES if _plain(value := getattr(config, name, None))}
    if not found:
        yield
        return
    with config.patch({name: _followed(value) for name, value in found.items()}):
        yield


def _plain(configured: Any) -> bool:
    """Whether a plain function is among the passes in `configured`."""
    each = configured if isinstance(configured, (list, tuple)) else [configured]
    return any(isinstance(one, (types.FunctionType, types.MethodType, functools.partial)) for one in each)


def _followed(configured: Any) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Followed(CustomGraphPass):  # type: ignore[misc]
        """A pass with its closure for a uuid; one that cannot be followed has none, so torch refuses it."""

        def __init__(self, function: Any) -> None:
            self.function = function

        def __call__(self, graph: Any) -> None:
            self.function(graph)

        def uuid(self) -> Any:
            found = fingerprint(self.function)
            return None if found.opaque else found.digest.hex

    if isinstance(configured, (list, tuple)):
        return type(configured)(Followed(one) if _plain(one) else one for one in configured)
    return Followed(configured)
