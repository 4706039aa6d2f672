"""What `aot` and `fx` share: torch's two guarded caches, kept in kcache's store.

Torch makes a key by handing a details object to a pickler, reads candidates through
`iterate_over_candidates`, and writes through `_write_to_local_cache`. Those three are
replaced; everything between, with all of torch's counters, mega-cache recording and
switches, stays torch's. Keys keep torch's form, a prefix letter and then our 64
hexadecimal digits, so an AOT entry names its FX entries as before.

A key in another form (a nonce, or one that stock torch made and a mega-cache brought) is
none of ours and goes torch's way.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from kcache.digest import SIZE, Key
from kcache.errors import Damaged, Opaque
from kcache.hooks import host, printed, ranks, session
from kcache.hooks.describe import describe
from kcache.hooks.patch import Patches, require
from kcache.key import Description, Descriptions

DESCRIPTIONS = Descriptions()
UNKNOWN = Description((), tuple)
"""Of a key that another process made."""

_local = threading.local()


@dataclass(frozen=True)
class Saving:
    """What the save in progress in this thread knows of its entry, beside the bytes."""

    guards: str
    cost_ns: int
    pieces: tuple[bytes, ...] = ()
    links: tuple[tuple[str, Key], ...] = ()
    refused: str = ""
    """Why the entry must not be stored."""


def parse(key: str) -> Key | None:
    """Our key in `key` as torch spells it, or None where torch or somebody else made it."""
    digits = key[-2 * SIZE :]
    if len(key) != 2 * SIZE + 1:
        return None
    try:
        return Key(bytes.fromhex(digits))
    except ValueError:
        return None


def make_key(layer: str, pickler: Any, details: Any, bypass: type[Exception]) -> str:
    """64 hexadecimal digits for `details`; raises torch's own `bypass` with a named reason where there is no key."""
    if setting := ranks.talking():
        _refuse(layer, f"the ranks talk while they compile: {setting}", bypass)
    try:
        description = describe(details, pickler.dumps, layer, host.compiler_identity)
    except Opaque as opaque:
        _refuse(layer, str(opaque), bypass)
    except bypass:
        raise
    except Exception as error:
        session.current().trouble(layer, "key failed", error)
        raise bypass(f"kcache: key failed: {error}") from error
    return DESCRIPTIONS.remember(description).hex


def _refuse(layer: str, reason: str, bypass: type[Exception]) -> NoReturn:
    session.current().bypass(layer, reason)
    raise bypass(f"kcache: {reason}")


def install(patches: Patches, layer: str, owner: Any) -> None:
    """Put the store under `owner`, a subclass of torch's `GuardedCache`."""
    require(owner, "iterate_over_candidates", ("cls", "local", "remote_cache", "key"))
    require(owner, "_write_to_local_cache", ("key", "content"))
    require(owner, "clear", ())
    require(owner, "_record_result", ("cls", "key", "local_hit", "local_miss"))
    read = owner.iterate_over_candidates
    write = owner._write_to_local_cache
    record = owner._record_result
    clear = owner.clear

    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        ours = parse(key)
        if not local or ours is None:
            yield from read(local, remote_cache, key)
            return
        yield from candidates(layer, ours)
        yield from read(False, remote_cache, key)

    def _write_to_local_cache(key: str, content: bytes) -> None:
        ours = parse(key)
        if ours is None:
            write(key, content)
        else:
            save(layer, ours, content)

    def _record_result(cls: Any, key: str, local_hit: bool, local_miss: bool, *args: Any, **kwargs: Any) -> None:
        if (ours := parse(key)) is not None:
            stats = session.current().stats
            stats.count(layer, "hit" if local_hit else "miss")
            if not local_hit:
                description = DESCRIPTIONS.get(ours) or UNKNOWN
                session.current().missed(layer, ours, description.parts, description.label)
            else:
                stats.saved(layer, getattr(_local, "cost_ns", 0))
        record(key, local_hit, local_miss, *args, **kwargs)

    def _clear() -> None:
        clear()
        session.current().cache.clear(layer)

    patches.replace(owner, "clear", staticmethod(_clear))
    patches.replace(owner, "iterate_over_candidates", classmethod(iterate_over_candidates))
    patches.replace(owner, "_write_to_local_cache", staticmethod(_write_to_local_cache))
    patches.replace(owner, "_record_result", classmethod(_record_result))


def candidates(layer: str, key: Key) -> Iterator[tuple[Any, bytes, bool]]:
    """(object, its pickle, True) for every stored variant of `key`, as torch's iterator gives them.

    An entry that cannot be read or unpickled is dropped, counted and left out.
    """
    active = session.current()
    try:
        found = active.cache.candidates(layer, key)
    except Exception as error:
        active.trouble(layer, "lookup failed", error)
        return
    handed = vars(_local).setdefault("handed", {})
    for candidate in found:
        try:
            content = candidate.load()
        except Damaged:
            continue  # dropped and counted where it was found
        except Exception as error:
            active.trouble(layer, "entry does not load", error)
            continue
        try:
            value = pickle.loads(content)
        except Exception as error:
            if blames_the_entry(error):
                active.spoiled(layer, key, candidate.guards, "entry does not load", error)
            else:
                active.trouble(layer, "entry does not load", error)
            continue
        _local.cost_ns = candidate.cost_ns
        handed[layer] = (weakref.ref(value), key, candidate.guards)
        yield value, content, True


def origin(layer: str, value: Any) -> tuple[Key, str] | None:
    """Key and guards of the entry that `value` was, if it is the last that this thread was handed from `layer`."""
    known, key, guards = vars(_local).get("handed", {}).get(layer, (None, None, ""))
    return (key, guards) if known is not None and known() is value else None


def blames_the_entry(error: Exception) -> bool:
    """Whether `error` says something of what was being loaded, and not only of the machine: memory, stack or disk."""
    if isinstance(error, (MemoryError, RecursionError)) or type(error).__name__ == "OutOfMemoryError":
        return False
    return not isinstance(error, OSError) or error.errno is None  # what `dlopen` refuses has no number


def save(layer: str, key: Key, content: bytes) -> None:
    """Queue an entry for the store, unless what its key was made of has changed since."""
    active = session.current()
    try:
        description = DESCRIPTIONS.get(key)
        read = getattr(_local, "saving", None)
        saving = read() if read else _from_content(content)
        stale = changed(layer, description, saving)
        if stale:
            active.unstored(layer, f"changed while compiling: {', '.join(stale)}")
            return
        if description and (reasons := printed.unlinked(description.parts)):
            active.unstored(layer, f"not linked: {reasons[0]}")
            return
        if saving.refused:
            active.stats.count(layer, "skipped", reason=saving.refused)
            return
        active.cache.put(
            layer,
            key,
            content,
            guards=saving.guards,
            parts=(*description.parts, *printed.texts(description.parts)) if description else (),
            links=saving.links,
            label=description.label if description else "",
            cost_ns=saving.cost_ns,
            pieces=saving.pieces,
        )
    except Exception as error:
        active.trouble(layer, "save failed", error)


def changed(layer: str, description: Description | None, saving: Saving) -> list[str]:
    """Parts that differ between the key and now.

    An AOT entry's settings are compared with those under which its FX entries were
    compiled, the backward's at the first `.backward()`: by the time of the save, options
    that `torch.compile(options=…)` had in force are not in force any more.
    """
    if description is None:
        return []
    if layer == "fx":
        return description.changed()
    code = [name for name in description.changed() if name.startswith(CODE)]
    linked = [DESCRIPTIONS.get(key) for _, key in saving.links]
    differing = {name for other in linked if other for name in description.differing(other)}
    return code + sorted(name for name in differing if name in SETTINGS or name.startswith("pass "))


CODE = ("kernel ", "function ", "class ", "operator ", "table ")
"""First words of the parts that stand for code and can be taken again at any moment; passes are settings."""

SETTINGS = frozenset(
    {"inductor_config", "switches", "triton_environment", "device", "user_environment", "default_dtype"}
)


@contextlib.contextmanager
def saving(read: Callable[[], Saving]) -> Iterator[None]:
    """Let a save in this thread know its entry; `read` is called when the write happens, after torch set the guards."""
    _local.saving = read
    try:
        yield
    finally:
        _local.saving = None


def _from_content(content: bytes) -> Saving:
    """For entries that arrive through torch's mega-cache: the guards are in the pickle."""
    return Saving(getattr(pickle.loads(content), "guards_expr", None) or "", 0)


def keyed(owner: Any, name: str, patches: Patches, methods: Callable[[type], dict[str, Any]]) -> None:
    """Replace the pickler class `owner.name` by a subclass with `methods`."""
    base = getattr(owner, name)
    patches.replace(owner, name, type(base.__name__, (base,), methods(base)))
