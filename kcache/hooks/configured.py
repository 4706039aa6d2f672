"""Torch's settings as parts of keys, and the code that some of them hold.

Torch keys most settings of Inductor by value, leaves out those whose names begin with an
underscore although some change the code, takes the word of a pass (its `uuid`) for what it
does, and pickles a function by its name. Here every setting counts, and a function, a class
or an object of the program's in one counts by its closure, whatever it says of itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from kcache import environment
from kcache.closure import fingerprint
from kcache.digest import Part
from kcache.errors import Opaque
from kcache.graph import owned_by_torch

PASSES = (
    "pre_grad_custom_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass",
    "joint_custom_post_pass", "_pre_fusion_custom_pass", "_post_fusion_custom_pass", "_fuse_ddp_communication_passes",
    "custom_partitioner_fn", "inductor_choices_class",
)  # fmt: skip
"""Settings of Inductor that hold code and that torch's own key has no more of than what the code says of itself."""

AUTOGRAD = ("joint_custom_pass", "activation_memory_budget_runtime_estimator", "activation_memory_budget_solver")
"""The same of AOTAutograd."""

LISTS = ("_save_config_ignore", "_cache_config_ignore_prefix", "_cache_config_factory_keys")
"""Private names of Inductor's settings that are no settings."""

PLAIN = (type(None), bool, int, float, str, bytes)


def values(details: Any, leaf: Callable[[Any], bytes], compiler: Callable[[], str]) -> Part:
    """The part that names every setting of Inductor's and its value; code in it is left to `code`."""
    config = {**details.inductor_config, **{name: getattr(torch._inductor.config, name) for name in private()}}
    if "cpp.cxx" in config:
        config["cpp.cxx"] = compiler()
    config = {name: value for name, value in config.items() if name not in PASSES}
    return environment.settings_part("inductor_config", config, lambda value: b"code" if _user(value) else leaf(value))


def code(settings: Mapping[str, Any]) -> list[Part]:
    """A part for each thing in `settings`, Inductor's, that is the program's own code, and for each in AOTAutograd's.

    Raises `Opaque` where one cannot be followed.
    """
    parts = []
    for name, position, thing in _things(settings):
        found = fingerprint(thing)
        if found.opaque:
            raise Opaque(f"pass {name}", found.opaque[0].name, found.opaque[0].why)
        parts.append(Part(f"pass {name} {position}", found.digest, found.listing))
    return parts


@functools.lru_cache(maxsize=1)
def private() -> tuple[str, ...]:
    """Names of Inductor's settings that torch leaves out of its key as private."""
    config = torch._inductor.config
    every = set(config.save_config_portable(ignore_private_configs=False)) - set(config.save_config_portable())
    return tuple(sorted(every - set(LISTS)))


def _things(settings: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
    inductor, autograd = torch._inductor.config, torch._functorch.config
    every = {
        **settings,
        **{name: getattr(inductor, name, None) for name in PASSES},
        **{name: getattr(autograd, name, None) for name in AUTOGRAD},
    }
    for name, value in every.items():
        if not isinstance(value, PLAIN):
            for position, thing in enumerate(_leaves(value)):
                thing = getattr(thing, "function", thing)  # what `lift` put around a plain function
                if _user(thing):
                    yield name, position, thing


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for pair in value.items():
            for each in pair:
                yield from _leaves(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _user(value: Any) -> bool:
    """Whether `value` is code of the program's, or may lead there."""
    if isinstance(value, PLAIN):
        return False
    return not owned_by_torch(type(value)) or (callable(value) and not owned_by_torch(value))
