"""Bypasses of torch's own: the reason that torch gives, with the function of the program and the name in it.

Torch logs such a reason and compiles; it counts as a bypass here too, so that `kcache.explain()`
lists every compile that no cache answers. What kcache has refused or reported itself, and what
torch counts as a miss, is left alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from kcache.graph import name_of
from kcache.hooks import session


@contextlib.contextmanager
def noted(layer: str, gm: Any = None) -> Iterator[None]:
    """Note an exception that leaves the block as a bypass of `layer`; `gm` is the graph that was looked at."""
    before = session.told()
    try:
        yield
    except Exception as error:
        if before == session.told() and not isinstance(error, _miss()):
            note(layer, f"{type(error).__name__}: {error}" if not isinstance(error, _bypasses()) else str(error), gm)
        raise


def note(layer: str, reason: str, gm: Any = None) -> None:
    """Count `reason`, in one line and with the place of the node in `gm` that torch refuses, if it is one."""
    node = culprit(getattr(gm, "gm", gm))
    words = " ".join(reason.split())
    session.current().bypass(layer, f"{place(node)}: {words}" if node is not None else words)


def culprit(gm: Any) -> torch.fx.Node | None:
    """The first node in `gm` or a graph module below it that neither of torch's two caches takes."""
    from torch._functorch._aot_autograd import autograd_cache

    if not isinstance(gm, torch.fx.GraphModule):
        return None
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.HigherOrderOperator) and not node.target.cacheable():
                return node
            try:
                if module is gm:
                    autograd_cache.check_node_safe(node)
            except autograd_cache.BypassAOTAutogradCache:
                return node
    return None


def place(node: torch.fx.Node) -> str:
    """`function (file:line): name`, the innermost frame of the program's that made `node`, and what it calls."""
    from torch.fx.graph import _parse_stack_trace

    frame = _parse_stack_trace(node.stack_trace) if node.stack_trace else None
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target.name()
    else:
        name = target if isinstance(target, str) else name_of(target)
    return f"{frame.name} ({os.path.basename(frame.file)}:{frame.lineno}): {name}" if frame else str(name)


def _bypasses() -> tuple[type[Exception], ...]:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    from torch._inductor.codecache import BypassFxGraphCache

    return BypassAOTAutogradCache, BypassFxGraphCache


def _miss() -> type[Exception]:
    from torch._functorch._aot_autograd.autograd_cache import FXGraphCacheMiss

    return FXGraphCacheMiss  # type: ignore[no-any-return]
