"""Recipes: how one kernel was compiled, so that it can be compiled again by another process or for another target.

A recipe stands alone: the linked text, the specialization (signature, constants,
attributes), the options, the target and the variables that Triton keys on. Neither the
program nor a GPU is needed to follow it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kcache import link
from kcache.constants import named
from kcache.digest import Key, Part
from kcache.errors import Opaque
from kcache.imports import FIXED
from kcache.literals import literal

Target = tuple[str, "int | str", int]
"""Back end, architecture and warp size, as in Triton's `GPUTarget`."""


@dataclass(frozen=True)
class Recipe:
    """All that a kernel's binary depends on."""

    text: str
    """A module that defines the kernel, last."""
    name: str
    signature: dict[str, str]
    """Type by parameter; `constexpr` for those that are in `constants`."""
    constants: str
    """Python expression of a dict from paths (tuples of int) to values."""
    attributes: str
    """Idem, to Triton's lists of attributes."""
    options: str
    """Idem, from names to values: the back end's options without those that it works out from the target."""
    target: Target
    environment: tuple[tuple[str, str], ...]
    """Variables that Triton keys on."""
    versions: dict[str, str]
    """Triton's own key and version, torch's version where the text imports it, the back end's tool and its version."""
    identity: str
    """What stands for the kernel in Triton's key."""
    hash: str
    """The hash under which Triton asks for the artifacts on that target."""

    def dumps(self) -> bytes:
        """The recipe as bytes; the text comes last and verbatim, so that entries share it."""
        head = {name: value for name, value in asdict(self).items() if name != "text"}
        return json.dumps(head, sort_keys=True).encode() + b"\n" + self.text.encode()

    @classmethod
    def loads(cls, data: bytes) -> Recipe:
        """Inverse of `dumps`. Raises `ValueError` for what is no recipe."""
        head, _, text = data.partition(b"\n")
        try:
            fields = json.loads(head)
            fields["target"] = tuple(fields["target"])
            fields["environment"] = tuple((str(name), str(value)) for name, value in fields["environment"])
            return cls(text=text.decode(), **fields)
        except (TypeError, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"not a recipe: {error}") from error

    @property
    def group(self) -> str:
        """The file name of the group of artifacts in Triton's cache."""
        return f"{self.name[:150]}.json"

    def key(self, backend: str, options: str) -> str:
        """Triton's cache key for this recipe, given the hashes of a target's back end and of its options."""
        return f"{self.versions['triton key']}-{self.identity}-{backend}-{options}-{list(self.environment)}"

    def on(self, target: Target, digest: str) -> Recipe:
        """The same kernel for another target, asked for under `digest`."""
        return replace(self, target=target, hash=digest)


def key_of(group: Key) -> Key:
    """The store's key for the recipe of the `triton` entry `group`."""
    return Key.of([Part.of("layer", "recipe"), Part.of("group", group.hex)])


def of(
    source: Any, *, target: Any, options: Mapping[str, Any], environment: Mapping[str, str], **keyed: Any
) -> Recipe:
    """The recipe of an `ASTSource` of Triton's; `keyed` are the fields that the caller knows.

    Raises `Opaque` where the kernel cannot be linked or a constant cannot be said.
    """
    linked = link.link(source.fn)
    known = {str(p.name) for p in source.fn.params}

    def leaf(value: Any) -> str:
        raise Opaque(linked.name, named(type(value)), "a constant that cannot be printed")

    def module(wanted: str) -> str:
        return FIXED.get(wanted, wanted)

    return Recipe(
        text=linked.module,
        name=linked.name,
        signature={name: str(kind) for name, kind in source.signature.items() if name in known},
        constants=literal(dict(source.constants), leaf, module),
        attributes=_plain(linked.name, dict(source.attrs)),
        options=_plain(linked.name, dict(options)),
        target=(target.backend, target.arch, target.warp_size),
        environment=tuple(sorted((str(k), str(v)) for k, v in environment.items())),
        **keyed,
    )


def _plain(kernel: str, value: Any) -> str:
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    raise Opaque(kernel, text[:80], "an option that is not plain data")
