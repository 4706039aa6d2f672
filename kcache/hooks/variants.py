"""Parallel cold compiles of autotuned kernels that are launched outside `torch.compile`.

Triton compiles the variants of an autotuned kernel one by one, each when its benchmark
begins. Here those that are missing are handed to worker processes all at once, as recipes,
and each benchmark waits for its own; order, timing and choice stay Triton's. Benchmarks
run while later variants are still being compiled, so two cores are left to this process.

A variant that has no recipe, and a program with compile hooks, listeners or an IR override,
goes Triton's way.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from typing import Any

from kcache.build import Pool, cores
from kcache.errors import Opaque
from kcache.hooks import kernels, recipes, session, timings
from kcache.hooks.patch import Patches, require

_local = threading.local()
_lock = threading.Lock()
_pending: dict[str, Future[dict[str, bytes]]] = {}
_pool: Pool | None = None


def install(patches: Patches) -> None:
    """Install the seam; raises `ShapeError` where Triton looks otherwise."""
    from triton.runtime import autotuner, jit

    require(autotuner.Autotuner, "prune_configs", ("self", "kwargs"))
    specialized = ("self", "key", "signature", "device", "constexprs", "options", "attrs", "warmup")
    require(jit.JITFunction, "_do_compile", specialized)
    prune, do_compile = autotuner.Autotuner.prune_configs, jit.JITFunction._do_compile

    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        configs = prune(self, kwargs)
        try:
            start(self, configs, kwargs)
        except Exception as error:
            session.current().trouble("triton", "parallel compile failed", error)
        return configs

    def _do_compile(
        self: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any, warmup: Any
    ) -> Any:
        found: dict[str, kernels.Asked] | None = getattr(_local, "asked", None)
        if found is None:
            return do_compile(self, key, signature, device, constexprs, options, attrs, warmup)
        backend = self.device_caches[device][3]
        asked = kernels.ask(self.ASTSource(self, signature, constexprs, attrs), backend, options)
        if asked is not None:
            found[asked.hash] = asked
        return None

    patches.replace(jit.JITFunction, "_do_compile", _do_compile)
    patches.replace(autotuner.Autotuner, "prune_configs", prune_configs)
    patches.also(close)


def start(tuner: Any, configs: Any, kwargs: dict[str, Any]) -> None:
    """Hand all variants of `configs` that are missing to the workers, if there are at least two."""
    jobs = session.current().settings.jobs or max(1, cores() - 2)
    if jobs < 2 or len(configs) < 2 or not session.caching() or not _plain(tuner):
        return
    if timings.known(tuner, configs, kwargs):  # nothing will be measured
        return
    missing = [asked for asked in _asked(tuner, configs, kwargs) if _missing(asked)]
    if len(missing) < 2:
        return
    made = []
    for asked in missing:
        try:
            made.append(recipes.of(asked))
        except Opaque as opaque:
            session.current().stats.count("recipe", "bypass", reason=str(opaque))
    with _lock:
        for recipe in made:
            _pending[recipe.hash] = _workers(jobs).submit(recipe)
    if made and sys.stderr.isatty():
        print(f"kcache: compiling {len(made)} variants of {made[0].name} in {jobs} processes", file=sys.stderr)


def arrived(digest: str) -> dict[str, bytes] | None:
    """The files of the variant that Triton asks for by `digest`, when a worker was given it; waits for the worker.

    None where none was, or where it failed, which is counted: Triton then compiles it and says why.
    """
    with _lock:
        future = _pending.pop(digest, None)
    if future is None:
        return None
    try:
        return future.result()
    except Exception as error:
        session.current().stats.count("triton", "skipped", reason=f"worker: {type(error).__name__}")
        return None


def close() -> None:
    """Stop the workers and forget what they were given."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
        _pending.clear()
    if pool is not None:
        pool.close()


def _workers(jobs: int) -> Pool:
    global _pool
    if _pool is None:
        _pool = Pool(jobs)
    return _pool


def _asked(tuner: Any, configs: Any, kwargs: dict[str, Any]) -> list[kernels.Asked]:
    """What Triton would ask for to compile each config, none twice."""
    found: dict[str, kernels.Asked] = {}
    _local.asked = found
    try:
        for config in configs:
            tuner.fn.run(*tuner.nargs.values(), **{**kwargs, **config.all_kwargs(), "warmup": True})
    finally:
        _local.asked = None
    return list(found.values())


def _missing(asked: kernels.Asked) -> bool:
    from triton.runtime.cache import get_cache_manager

    with _lock:
        if asked.hash in _pending:
            return False
    return not get_cache_manager(asked.hash).known(f"{asked.source.name[:150]}.json")


def _plain(tuner: Any) -> bool:
    """Whether nothing of the program's watches or changes compiles."""
    from triton import knobs
    from triton.runtime import _async_compile
    from triton.runtime.jit import JITFunction

    function = tuner.fn
    while not isinstance(function, JITFunction):
        function = function.fn
    hooks = (knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook, knobs.compilation.listener,
             getattr(knobs.runtime, "add_stages_inspection_hook", None), _async_compile.active_mode.get())  # fmt: skip
    switches = (knobs.compilation.override, knobs.compilation.dump_ir, knobs.compilation.always_compile,
                knobs.compilation.use_ir_loc, knobs.compilation.store_binary_only, knobs.runtime.interpret)  # fmt: skip
    return not function.pre_run_hooks and not any(hook is not None for hook in hooks) and not any(switches)
