"""Files whose pages were damaged: LMDB's own pages carry no checksum, so this is where damage can end a process.

A copy of one store is damaged in one way (`DAMAGES`) and handed to a process that reads everything, writes, evicts and
reads again. LMDB reports most of the damage; some of it ends that process by SIGBUS or SIGSEGV. Then the next process
is started on what is left. Faults: a wrong value, an exception that is not the store's, a process that hangs, a second
process that dies of the same file, a store that cannot be used in the end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from kcache.counters import Stats
from kcache.errors import Damaged, StoreError
from kcache.store import Store
from kcache.units import MIB
from tests.faults import entries
from tests.faults.figures import Figures

MAX_SIZE = 32 * MIB
COUNT = 240
"""Entries of the store, enough for trees of two and three levels."""
PAGE = 4096
HANGS = 20
"""Seconds after which a process counts as hanging."""
WRONG, USELESS = 3, 4
_META = struct.Struct("<64x Q 40x Q 8x Q")
"""Of a meta page, behind its header: the root of the free pages, the root of the tables, the transaction."""


def base(root: Path) -> None:
    """A store with every table in use and pages that are free."""
    store = Store.open(root, max_size=MAX_SIZE)
    for n in range(0, COUNT, 8):
        store.write([entries.draft(m) for m in range(n, n + 8)])
    store.touch([item.id for item in store.scan()])
    store.add_run({"layers": {"fx": {"hit": 3}}, "reasons": [], "saved_ns": {"fx": 5}})
    store.write([entries.draft(n) for n in range(2000, 2020)])
    store.delete([item.id for item in store.scan() if item.record and int(item.record.label) >= 2000])
    store.close()


# --- damage ---


def bit_in_header(file: bytearray, at: int, drawn: random.Random) -> None:
    file[at + drawn.randrange(16)] ^= 1 << drawn.randrange(8)


def bit_anywhere(file: bytearray, at: int, drawn: random.Random) -> None:
    file[at + drawn.randrange(PAGE)] ^= 1 << drawn.randrange(8)


def byte_behind_header(file: bytearray, at: int, drawn: random.Random) -> None:
    """Among the offsets of the page's nodes."""
    file[at + 16 + drawn.randrange(48)] = drawn.randrange(256)


def random_page(file: bytearray, at: int, drawn: random.Random) -> None:
    file[at : at + PAGE] = drawn.randbytes(PAGE)


def random_sector(file: bytearray, at: int, drawn: random.Random) -> None:
    start = at + 512 * drawn.randrange(8)
    file[start : start + 512] = drawn.randbytes(512)


def zeroed_page(file: bytearray, at: int, drawn: random.Random) -> None:
    file[at : at + PAGE] = bytes(PAGE)


def page_of_another(file: bytearray, at: int, drawn: random.Random) -> None:
    other = PAGE * drawn.randrange(len(file) // PAGE)
    file[at : at + PAGE] = file[other : other + PAGE]


def older_page(file: bytearray, at: int, drawn: random.Random) -> None:
    """The page with another page's content and its own number: what a lost write leaves."""
    number = file[at : at + 8]
    page_of_another(file, at, drawn)
    file[at : at + 8] = number


def cut_short(file: bytearray, at: int, drawn: random.Random) -> None:
    del file[at + drawn.randrange(PAGE) :]


def zeroed_tail(file: bytearray, at: int, drawn: random.Random) -> None:
    file[at:] = bytes(len(file) - at)


DAMAGES: tuple[Callable[[bytearray, int, random.Random], None], ...] = (
    *(bit_in_header, bit_anywhere, byte_behind_header, random_page, random_sector, zeroed_page, page_of_another),
    *(older_page, cut_short, zeroed_tail),
)


def tree_pages(file: bytes) -> list[int]:
    """Offsets of the pages that are not the inside of a large value: metas, branches, leaves, heads of overflows."""
    found, at = [], 0
    while at < len(file):
        found.append(at)
        flags = int.from_bytes(file[at + 10 : at + 12], "little")
        overflow = flags & 0x04 and int.from_bytes(file[at : at + 8], "little") == at // PAGE
        at += PAGE * (int.from_bytes(file[at + 12 : at + 16], "little") if overflow else 1)
    return found


def vital_pages(file: bytes) -> list[int]:
    """Offsets of the pages that are read while a store is opened: metas, and the roots that the newer one names."""
    newer = max((0, PAGE), key=lambda meta: _META.unpack_from(file, meta + 16)[-1])
    free, main, _ = _META.unpack_from(file, newer + 16)
    return [0, PAGE, *(PAGE * root for root in (free, main) if root < len(file) // PAGE)]


# --- those who use it ---


def user(root: Path, kept: Callable[[str], None]) -> int:
    """A process that does everything there is to do. `kept` is told what the store refused."""
    signal.alarm(HANGS)
    stats, wrong, store = Stats(), 0, None
    drafts = [entries.draft(n) for n in (3000, 3001, 3002)]

    def everything(store: Store) -> None:
        nonlocal wrong
        wrong += sum(not right(store, n) for n in range(COUNT))
        for item in store.scan():
            if item.record is not None:
                wrong += not right(store, int(item.record.label))

    def each(store: Store) -> list[Callable[[], object]]:
        return [
            lambda: everything(store),
            lambda: store.write(drafts),
            lambda: store.parts(entries.layer(3), entries.key(3)),
            lambda: store.touch([item.id for item in store.scan()]),
            store.runs,
            store.counters,
            lambda: store.evict(store.live_bytes() // 2),
            lambda: everything(store),
        ]

    try:
        store = Store.open(root, max_size=MAX_SIZE, stats=stats)
    except StoreError as error:
        kept(f"not opened: {error.reason}")
        return USELESS
    for act in each(store):
        try:
            act()
        except (StoreError, Damaged) as error:
            kept(f"error: {error.reason}")
    store.close()
    for _, outcome, reason in stats.snapshot().reasons:
        if reason != "evicted":
            kept(f"{outcome}: {reason}")
    return WRONG if wrong else 0


def right(store: Store, n: int) -> bool:
    """Whether entry `n` is absent, refused or what it was."""
    try:
        content = entries.read(store, n)
    except Damaged:
        return True
    return content is None or content == entries.value(n)


def usable(root: Path) -> int:
    """A process that wants a store and nothing else: 0 if what it writes comes back."""
    signal.alarm(HANGS)
    for _ in range(2):  # the first access after damage may be the one that finds it
        try:
            store = Store.open(root, max_size=MAX_SIZE, stats=Stats())
            store.write([entries.draft(4000)])
            if entries.read(store, 4000) == entries.value(4000):
                return 0
        except StoreError as error:
            print(error, file=sys.stderr)
    return USELESS


def ended(work: Callable[[], int]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(entries.forked(work), 0)[1])


def run(folder: str, files: int = 1000, seed: int = 1) -> Figures:
    """Damage `files` copies of one store, one way each, and send processes at each of them."""
    figures, drawn = Figures(), random.Random(seed)
    origin, root = Path(folder) / "base", Path(folder) / "copy"
    base(origin)
    whole = (origin / "v1" / "data.mdb").read_bytes()
    pages, vital = tree_pages(whole), vital_pages(whole)
    for n in range(files):
        damage = DAMAGES[n % len(DAMAGES)]
        at = drawn.choice(vital if n % 4 == 0 else pages)
        file = bytearray(whole)
        damage(file, at, drawn)
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        (root / "v1" / "data.mdb").write_bytes(file)
        figures.counts["files"] += 1
        follow(root, f"file {n} ({damage.__name__} of page {at // PAGE})", figures)
    return figures


def follow(root: Path, name: str, figures: Figures) -> None:
    """Send processes at the store until one survives it and says so."""
    said = root.with_name("said")
    died = ""
    for _ in range(4):
        said.unlink(missing_ok=True)

        def keep(reason: str) -> None:
            with open(said, "a") as file:
                file.write(reason + "\n")

        code = ended(lambda: user(root, keep))
        for reason in said.read_text().splitlines() if said.exists() else ():
            figures.counts[f"said: {reason}"] += 1
        if code == -signal.SIGALRM:
            figures.faults[f"{name}: hangs"] += 1
        elif code < 0:
            signal_name = signal.Signals(-code).name
            figures.counts[f"killed by {signal_name}"] += 1
            if died:
                figures.faults[f"{name}: {died}, and the next by {signal_name}"] += 1
            died = f"killed by {signal_name}"
            continue
        elif code == WRONG:
            figures.faults[f"{name}: wrong value"] += 1
        elif code not in (0, USELESS):
            figures.faults[f"{name}: raises"] += 1
        break
    figures.counts["nothing noticed"] += code == 0 and not said.exists()
    code = ended(lambda: usable(root))
    if code:
        figures.faults[f"{name}: not usable afterwards ({code})"] += 1
