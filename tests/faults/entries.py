"""Entries whose bytes follow from their number, and a check of a whole store against them.

Whoever reads entry `n` knows what it must be, in whichever process. Values differ in size, so that all forms occur:
inside a record, one chunk, several chunks; every fourth entry shares a piece with its neighbours, every third has a
part list with values.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from kcache import datafile
from kcache.counters import Stats
from kcache.digest import Digest, Key, Part
from kcache.draft import Draft
from kcache.entry import unpack_parts
from kcache.errors import Damaged
from kcache.rows import parse_row
from kcache.store import Store

LAYERS = ("fx", "aot", "triton")
SIZES = (60, 400, 900, 3_000, 9_000, 20_000, 70_000)


def layer(n: int) -> str:
    return LAYERS[n % len(LAYERS)]


def key(n: int) -> Key:
    return Key.of([Part.of("name", str(n))])


def noise(seed: object, size: int) -> bytes:
    """`size` bytes that zstd cannot shorten, the same for the same seed."""
    return blake3(str(seed).encode()).digest(size)


def value(n: int, size: int = 0) -> bytes:
    """The value of entry `n`; `size` where the caller has sizes of its own."""
    own = noise(n, size or SIZES[n % len(SIZES)])
    return own + piece(n) if n % 4 == 0 and not size else own


def piece(n: int) -> bytes:
    return noise(f"piece {n // 40}", 5_000)


def draft(n: int, size: int = 0, **more: object) -> Draft:
    fields = {
        "layer": layer(n),
        "key": key(n),
        "value": value(n, size),
        "label": str(n),
        "created_ns": 1 + n,
        "pieces": (piece(n),) if n % 4 == 0 and not size else (),
        "parts": (Part.of("name", str(n)), Part.of("graph", f"graph {n // 10}")) if n % 3 == 0 else (),
    }
    return Draft(**(fields | more))  # type: ignore[arg-type]


def read(store: Store, n: int) -> bytes | None:
    """The value under the key of entry `n`, None if there is none. Raises `Damaged`."""
    found = store.variants(layer(n), key(n))
    return store.read(found[0][1]) if found else None


def audit(root: Path, *, expected: Callable[[int], bytes] = value) -> list[str]:
    """What is wrong with the store in `root`, which this process must not have open.

    The tree holds together; every entry is whole and has the value that its label says; the references that are
    counted are those that there are, and every frame has one.
    """
    wrong = [f"tree: {problem}" for problem in datafile.problems(root / "v1")]
    if wrong:
        return wrong
    stats = Stats()
    store = Store.open(root, max_size=1 << 30, create=False, stats=stats)
    try:
        for item in store.scan():
            if item.record is None:
                wrong.append(f"record of {item.layer} {item.key!r} is damaged")
                continue
            try:
                if store.read(item.record) != expected(int(item.record.label)):
                    wrong.append(f"entry {item.record.label} has another value")
            except Damaged as damage:
                wrong.append(f"entry {item.record.label}: {damage}")
        wrong += _references(store)
    finally:
        store.close()
    return wrong + [f"{name} while reading" for name in stats.snapshot().reasons]


def _references(store: Store) -> list[str]:
    there: Counter[bytes] = Counter()
    for item in store.scan():
        there.update(digest.raw for digest in (item.record.digests if item.record else ()))
    with store.transaction() as txn:
        for row, data in txn.rows("parts", b""):
            there.update({digest.raw for _, digest, kept in unpack_parts(*parse_row(row), data) if kept})
        counted = {row: int.from_bytes(data, "big") for row, data in txn.rows("refs", b"")}
        frames = {row[: len(Digest.of(b"").raw)] for row, _ in txn.rows("blobs", b"")}
    return [
        *(f"frame {name.hex()[:8]} has {n} references and {counted.get(name)} are counted"
          for name, n in there.items() if counted.get(name) != n),
        *(f"frame {name.hex()[:8]} is counted and nothing names it" for name in counted.keys() - there.keys()),
        *(f"frame {name.hex()[:8]} has no reference" for name in frames - counted.keys()),
    ]  # fmt: skip


def forked(work: Callable[[], int]) -> int:
    """Run `work` in a forked child that has no store open. Returns the child's pid; its exit code is what `work` says.

    70: it raised, and its traceback was printed.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)
