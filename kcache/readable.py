"""An entry as text that a person reads: its graph with names where digests stand, and the text of its kernels.

Only what was stored is printed; nothing is worked out anew and no program is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .digest import SIZE, Digest, Key, Part
from .errors import Damaged
from .listing import BESIDE, read_fields, read_settings
from .recipe import Recipe
from .recipe import key_of as recipe_key

if TYPE_CHECKING:
    from .store import Store

SHOWN = (
    "graph", "assumptions", "example_inputs", "source", "signature", "constants", "attributes", "options", "target",
)  # fmt: skip
"""Parts that are printed, in this order; the settings of a compile are left to `kcache explain`."""

_DIGEST = re.compile(rf"\b[0-9a-f]{{{2 * SIZE}}}\b")


def page(store: Store, layer: str, key: Key) -> str:
    """The readable parts of an entry, each under a heading. Raises `Damaged` if one cannot be read."""
    parts = {part.name: part for part in store.parts(layer, key)}
    sections = [(name, _spelled(name, parts)) for name in SHOWN if name in parts and parts[name].text]
    texts = dict(_texts(store, layer, key, parts.values()))
    for name in _kernels(parts.values()):
        sections.append((f"kernel {name}", texts.pop(name, "(its linked text is not kept)")))
    sections += [(f"kernel {name}", text) for name, text in texts.items()]
    if not sections:
        return "nothing of this entry is kept as text"
    return "\n\n".join(f"== {title}\n{text.rstrip()}" for title, text in sections)


def _spelled(name: str, parts: dict[str, Part]) -> str:
    text = parts[name].text.decode(errors="replace")
    if (settings := read_settings(text)) is not None and name != "graph":
        return "\n".join(f"{each.name} = {_value(each.value)}" for each in settings.values())
    return named(text, parts.values()) if name == "graph" else text


def _value(text: str) -> str:
    values = read_fields(text)
    return text if values is None else ", ".join(f"{name} {value}" for name, value in values.items())


def named(graph: str, parts: Iterable[Part]) -> str:
    """A canonical graph with the name and the first digits of each kernel and function in place of its digest.

    Digests of other things, such as tensors that the graph holds, are cut to their first digits.
    """
    names = {
        part.digest.hex: part.name.split(" ", 2)[2] for part in parts if part.name.startswith(("kernel ", "function "))
    }

    def spelled(found: re.Match[str]) -> str:
        digest = found.group()
        short = Digest(bytes.fromhex(digest)).short
        return f"{names[digest]}:{short}" if digest in names else short

    return _DIGEST.sub(spelled, graph)


def _kernels(parts: Iterable[Part]) -> list[str]:
    return list(dict.fromkeys(part.name.split(" ", 2)[2] for part in parts if part.name.startswith("kernel ")))


def _texts(store: Store, layer: str, key: Key, parts: Iterable[Part]) -> Iterator[tuple[str, str]]:
    """Linked text by kernel: kept with the entry or with those that it names, or in its recipe."""
    for part in parts:
        if part.name.startswith(BESIDE):
            yield part.name.removeprefix(BESIDE), part.text.decode(errors="replace")
    for _, record in store.variants(layer, key):
        for other_layer, other in record.links:
            yield from _texts(store, other_layer, other, store.parts(other_layer, other))
    for _, record in store.variants("recipe", recipe_key(key) if layer == "triton" else key):
        try:
            recipe = Recipe.loads(store.read(record))
        except ValueError as error:
            raise Damaged("unreadable", str(error)) from error
        yield recipe.name, recipe.text
