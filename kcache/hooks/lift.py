"""What torch refuses to cache although the canonical graph covers it.

Torch answers "cacheable?" per higher-order operator and per function target with short
lists. kcache's key holds the bodies of `autograd.Function`, `cond`, loops and scans (they
are nested graph modules) and the closures of functions, so while a key is being made, and
only then, those count as cacheable. Everything else stays refused.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Iterator
from typing import Any

from kcache.errors import Opaque
from kcache.graph import followed, name_of, owned_by_torch
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

_active = threading.local()


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where torch looks otherwise."""
    import torch
    from torch._functorch._aot_autograd import autograd_cache

    hop = torch._ops.HigherOrderOperator
    require(hop, "cacheable", ("self",))
    require(autograd_cache, "check_node_safe", ("node",))
    cacheable, check = hop.cacheable, autograd_cache.check_node_safe

    def _cacheable(self: Any) -> bool:
        return bool(cacheable(self)) or (getattr(_active, "on", False) and self.name() in COVERED)

    def check_node_safe(node: Any) -> None:
        try:
            check(node)
        except autograd_cache.BypassAOTAutogradCache:
            if not (getattr(_active, "on", False) and node.op == "call_function" and _function_is_covered(node.target)):
                raise

    patches.replace(hop, "cacheable", _cacheable)
    patches.replace(autograd_cache, "check_node_safe", check_node_safe)


def _function_is_covered(target: Any) -> bool:
    if owned_by_torch(target):
        return name_of(target) in KNOWN
    if owned_by_torch(type(target)) and not isinstance(target, PLAIN_CALLABLES):
        return False  # an object of torch's that only looks like a function, as compiled autograd puts into its graphs
    try:
        followed(target)
    except Opaque:
        return False  # torch's own bypass is raised and counted
    return True


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """While a key is made in this thread, what the canonical graph covers is cacheable."""
    before = getattr(_active, "on", False)
    _active.on = True
    try:
        yield
    finally:
        _active.on = before
