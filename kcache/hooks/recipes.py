"""Layer `recipe`: how each kernel was compiled, kept beside its artifacts.

`kcache compile` follows recipes where neither the program nor the GPU is at hand. What
cannot be said in a recipe is counted with its reason, and its artifacts are stored all the
same.
"""

from __future__ import annotations

from typing import Any

from kcache import recipe
from kcache.digest import Key
from kcache.errors import Opaque
from kcache.hooks import session
from kcache.hooks.kernels import Asked
from kcache.recipe import Recipe


def keep(asked: Asked, group: Key) -> None:
    """Store the recipe of what was just compiled under the key of its `triton` group."""
    active = session.current()
    try:
        made = of(asked)
        active.cache.put("recipe", recipe.key_of(group), made.dumps(), label=made.name, pieces=(made.text.encode(),))
    except Opaque as opaque:
        active.bypass("recipe", str(opaque))
    except Exception as error:
        active.trouble("recipe", "save failed", error)


def of(asked: Asked) -> Recipe:
    """The recipe for a key of Triton's. Raises `Opaque` where there is none."""
    import triton
    from triton.runtime.cache import triton_key

    name = getattr(asked.source, "name", "kernel")
    if not hasattr(asked.source, "constants"):
        raise Opaque(name, name, "it was not compiled from Triton's language")
    if getattr(asked.options, "debug", False):
        raise Opaque(name, "debug", "the places of its assertions are in the binary")
    if getattr(asked.source.fn, "_repr", None) is not None:
        raise Opaque(name, "repr", "its name is made by a function of the program's")
    tool = asked.backend.hash().rpartition("-")[0]
    made = recipe.of(
        asked.source,
        target=asked.backend.target,
        options=_own(asked.backend, asked.options),
        environment=asked.environment,
        versions={"triton": triton.__version__, "triton key": triton_key(), "tool": tool},
        identity=asked.identity,
        hash=asked.hash,
    )
    if "import torch" in made.text:
        import torch

        made.versions["torch"] = str(torch.__version__)
    return made


def _own(backend: Any, options: Any) -> dict[str, Any]:
    """The options that differ from what the back end works out from the target alone."""
    given = backend.parse_options({}).__dict__
    return {name: value for name, value in options.__dict__.items() if name not in given or given[name] != value}
