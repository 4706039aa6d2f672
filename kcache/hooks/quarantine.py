"""Entries of `aot` and `fx` that unpickle and then turn out to be of no use: removed, and compiled cold once.

Until torch has wrapped what it found, nothing of the program has run, so any exception there,
but for one that speaks of the machine, becomes a miss as torch itself knows it, and the compile
begins anew. If the program is to blame, the cold compile says so.

The first call of a graph is another matter: its inputs are consumed, and a kernel may have written
to them, so it cannot be run again. Inductor's module calls kernels and operators, whose exceptions
are raised deeper, and holds no code of the user's; a name that is missing *in the module itself*
is therefore the entry's fault. It is removed, the exception goes on, and the next process compiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from kcache.digest import Key
from kcache.hooks import guarded, session
from kcache.hooks.patch import Patches, require

UNUSABLE = "entry cannot be used"
FAILS = "entry fails when first used"
_NAMES = (NameError, AttributeError, ImportError)


def install(patches: Patches) -> None:
    """Install the seams; raises `ShapeError` where torch looks otherwise."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult as Result
    from torch._inductor.output_code import CompiledFxGraph

    require(CompiledFxGraph, "after_deserialization", ("self", "constants"))
    require(Result, "wrap_post_compile", ("self", "args", "aot_config", "fx_config"))
    miss = require(autograd_cache, "FXGraphCacheMiss")
    bypass = require(autograd_cache, "BypassAOTAutogradCache")
    load, wrap = CompiledFxGraph.after_deserialization, Result.wrap_post_compile

    @functools.wraps(load)
    def after_deserialization(self: Any, constants: Any) -> Any:
        found = guarded.origin("fx", self)
        if found is None:
            return load(self, constants)
        try:
            path = load(self, constants)
        except Exception as error:
            if guarded.blames_the_entry(error):
                session.current().spoiled("fx", *found, UNUSABLE, error)
            if isinstance(error, OSError):
                raise
            raise OSError(f"kcache: {UNUSABLE}") from error  # what torch takes for a miss here
        self.current_callable = watched(self.current_callable, path, *found)
        return path

    @functools.wraps(wrap)
    def wrap_post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = guarded.origin("aot", self)
        try:
            return wrap(self, *args, **kwargs)
        except bypass:
            raise
        except Exception as error:
            if found is None or not guarded.blames_the_entry(error):
                raise
            session.current().spoiled("aot", *found, UNUSABLE, error)
            raise miss from error

    patches.replace(CompiledFxGraph, "after_deserialization", after_deserialization)
    patches.replace(Result, "wrap_post_compile", wrap_post_compile)


def watched(call: Callable[[Any], Any], path: str, key: Key, guards: str) -> Callable[[Any], Any]:
    """`call`, the function of the generated module at `path`, with an eye on it until it has returned once."""
    proven = False

    def run(inputs: Any) -> Any:
        nonlocal proven
        if proven:
            return call(inputs)
        try:
            out = call(inputs)
        except _NAMES as error:
            if _raised_in(error.__traceback__, path) and session.CURRENT is not None:
                session.CURRENT.spoiled("fx", key, guards, FAILS, error)
            raise
        proven = True
        return out

    return run


def _raised_in(trace: TracebackType | None, path: str) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == path
