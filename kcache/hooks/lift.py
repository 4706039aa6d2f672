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

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
PLAIN_CALLABLES = (*FUNCTIONS, types.BuiltinFunctionType, type)

PASSES = {
    "post_grad_custom_pre_pass": "CustomGraphPass",
    "post_grad_custom_post_pass": "CustomGraphPass",
    "joint_custom_pre_pass": "CustomGraphPass",
    "joint_custom_post_pass": "CustomGraphPass",
    "_fuse_ddp_communication_passes": "CustomGraphPass",
    "_pre_fusion_custom_pass": "CustomSchedulerPass",
    "_post_fusion_custom_pass": "CustomSchedulerPass",
}
"""Settings of Inductor that hold passes, and the class with a uuid that torch wants them to be of."""

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
    require(autograd_cache, "_get_custom_estimator_solver_uuids", ("autograd_config",))
    hash_of = autograd_cache._get_context_fn_cache_hash
    uuids_of = autograd_cache._get_custom_estimator_solver_uuids

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

    def _get_custom_estimator_solver_uuids(config: Any) -> Any:
        """Functions for AOTAutograd's memory budget go by their closures; objects say their own uuid."""
        names = ("activation_memory_budget_runtime_estimator", "activation_memory_budget_solver")
        plain = {name: value for name in names if isinstance(value := getattr(config, name, None), FUNCTIONS)}
        found = {name: by_closure(value) for name, value in plain.items()}
        if not getattr(_active, "on", False) or not found or None in found.values():
            return uuids_of(config)
        with config.patch(dict.fromkeys(found, "default")):
            return uuids_of(config), found

    patches.replace(autograd_cache, "_get_context_fn_cache_hash", _get_context_fn_cache_hash)
    patches.replace(autograd_cache, "_get_custom_estimator_solver_uuids", _get_custom_estimator_solver_uuids)
    patches.replace(hop, "cacheable", _cacheable)
    patches.replace(autograd_cache, "check_node_safe", check_node_safe)


def by_closure(function: Any) -> str | None:
    """Stands for a uuid: the digest of a function's closure; None if it cannot be followed."""
    found = fingerprint(function)
    return None if found.opaque else found.digest.hex


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
    with config.patch({name: _followed(value, PASSES[name]) for name, value in found.items()}):
        yield


def _plain(configured: Any) -> bool:
    """Whether a plain function is among the passes in `configured`."""
    each = configured if isinstance(configured, (list, tuple)) else [configured]
    return any(isinstance(one, FUNCTIONS) for one in each)


def _followed(configured: Any, wanted: str) -> Any:
    from torch._inductor import custom_graph_pass

    base: Any = getattr(custom_graph_pass, wanted, None)
    if base is None:  # this torch refuses all but its own
        return configured

    class Followed(base):  # type: ignore[misc]
        """A pass with its closure for a uuid; one that cannot be followed has none, so torch refuses it."""

        def __init__(self, function: Any) -> None:
            self.function = function

        def __call__(self, graph: Any) -> Any:
            return self.function(graph)

        def uuid(self) -> Any:
            return by_closure(self.function)

    if isinstance(configured, (list, tuple)):
        return type(configured)(Followed(one) if _plain(one) else one for one in configured)
    return Followed(configured)
