"""Score keys on packages: `python -m tests.corpus.run liger_kernel fla [--path FOLDER] [--limit N] [--json FILE]`.

* stale: a kernel with the same key after an edit that reaches it. Where only a helper or a
  constant was edited, TTIR for compute capability 9.0 decides whether the edit reached it.
* needless: a kernel with another key after an edit that cannot matter.
* linked: `fingerprint(kernel).source`, compiled where nothing of the package is, gives the
  kernel's own TTIR.

Every stale, needless, opaque, unlinked or different kernel is listed. Exits 1 if there are
more than `BAR` allows.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus import jobs, neutral, planted, semantic
from tests.corpus.program import Kernel, load
from tests.corpus.signature import Signature, find, lowered

BAR = {"stale": 0.0, "needless": 0.005, "opaque": 0.01, "unlinked": 0.01, "different": 0.01}
"""Share of each that is allowed."""

SEARCH_S = 3.0
"""Seconds in which a signature must be found for one kernel."""

LOADED_FIRST = ("torch._inductor.codecache", "triton.language.extra.libdevice")
"""What every version would import, so that each process starts with it."""

LINK_AT_ONCE = 16
"""Kernels that one process lowers: one that Triton crashes on takes these with it."""

Key = Callable[[Any], "tuple[str, list[str]]"]
Version = dict[str, "tuple[Kernel, str, list[str]]"]
"""By kernel: what it reaches, its key, and what of it could not be followed."""


def kcache_key(kernel: Any) -> tuple[str, list[str]]:
    """kcache's key of a kernel with its launchers, and its opaque names."""
    from kcache import fingerprint

    found = fingerprint(kernel)
    return found.digest.hex, [str(o) for o in found.opaque]


@dataclass
class Report:
    """What one package gave."""

    package: str
    kernels: int = 0
    lost_modules: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Counter[str]] = field(default_factory=lambda: {f: Counter() for f in (*BAR, "elsewhere")})
    """Pairs of edit and kernel by kind, or kernels."""
    bad: dict[str, list[str]] = field(default_factory=lambda: {f: [] for f in (*BAR, "elsewhere")})
    """Those that are not as they should be, one line each."""
    undecided: list[str] = field(default_factory=list)
    """Same key after an edit of a helper or constant, and no signature found to compare TTIR."""
    no_effect: int = 0
    """Same key and same TTIR: the edit did not reach the kernel."""
    seconds: float = 0.0

    def good(self) -> bool:
        """Whether all shares are within the bar, and something was asked."""
        within = [len(self.bad[f]) <= share * self.asked[f].total() for f, share in BAR.items()]
        return all(within) and self.asked["stale"].total() > 0 and self.asked["needless"].total() > 0

    def lines(self) -> Iterable[str]:
        """The report as text."""
        yield f"{self.package}: {self.kernels} kernels, {self.seconds:.0f} s"
        for figure, asked in self.asked.items():
            if asked.total():
                share = 100 * len(self.bad[figure]) / asked.total()
                yield f"  {figure:10} {len(self.bad[figure])} of {asked.total()} ({share:.2f} %)"
                if len(asked) > 1:
                    yield "             " + ", ".join(f"{kind} {n}" for kind, n in sorted(asked.items()))
            yield from (f"    {figure}: {line}" for line in self.bad[figure])
        if self.no_effect or self.undecided:
            yield f"  not counted: {self.no_effect} edits without effect on TTIR, {len(self.undecided)} undecided"
            yield from (f"    undecided: {line}" for line in self.undecided)
        for module, why in sorted(self.lost_modules.items()):
            yield f"    not imported: {module}: {why}"


@dataclass
class Corpus:
    """One package under all edits."""

    package: str
    source: Path
    """The folder that holds the package."""
    key: Key = kcache_key
    limit: int | None = None
    """How many kernels are asked for, the same in each version."""
    few: int | None = None
    """How many rounds, neutral edits and planted kinds are made."""

    def score(self) -> Report:
        """Run everything; minutes for a large package."""
        started = time.monotonic()
        report = Report(self.package)
        base, report.lost_modules = self.versions([{}])[0]
        report.kernels = len(base)
        report.asked["opaque"]["kernels"] = len(base)
        report.bad["opaque"] = [f"{i}: {why[0]}" for i, (_, _, why) in base.items() if why]
        self.semantic(base, report)
        self.neutral(base, report)
        self.anywhere(base, report)
        self.planted(base, report)
        self.linked(base, report)
        report.seconds = time.monotonic() - started
        return report

    # --- versions

    def versions(self, files: list[dict[str, bytes]]) -> list[tuple[Version, dict[str, str]]]:
        """Import each version in a process of its own."""
        for module in LOADED_FIRST:
            importlib.import_module(module)
        found = jobs.run(_keys, [(self, changed, False) for changed in files])
        for each in found:
            if isinstance(each, jobs.Lost):
                raise RuntimeError(f"{self.package}: {each.why}")
        return found

    def semantic(self, base: Version, report: Report) -> None:
        kernels = [k for k, _, _ in base.values()]
        made = semantic.rounds(semantic.edits(self.source, kernels, self.package), kernels, self.package)[: self.few]
        files = [_files(self.source, edits) for edits in made]
        doubts: list[tuple[dict[str, bytes], dict[str, str]]] = []
        for edits, changed, (version, _) in zip(made, files, self.versions(files)):
            doubtful = {}
            for i in base.keys() & version.keys():
                (kernel, key, _), (now, new, _) = base[i], version[i]
                facts = kernel.launcher != now.launcher, kernel.bound != now.bound
                touching = [e for e in edits if e.touches(kernel)]
                if not touching:
                    if not any(facts):
                        report.asked["elsewhere"]["edits elsewhere"] += 1
                        report.bad["elsewhere"] += [i] if key != new else []
                    continue
                edit = touching[0]
                if edit.place is None and not any(facts) and key == new:
                    continue  # another thing of that name
                what = f"{i}: {edit.kind}, {edit.file}, {edit.change.text!r}"
                if key != new:
                    report.asked["stale"][edit.kind] += 1
                elif facts[0] or edit.place == kernel.own or edit.place in kernel.hosts:
                    report.asked["stale"][edit.kind] += 1
                    report.bad["stale"].append(what)
                else:
                    doubtful[i] = what
            doubts.append((changed, doubtful))
        self.decide(doubts, report)

    def decide(self, doubts: list[tuple[dict[str, bytes], dict[str, str]]], report: Report) -> None:
        """Compare TTIR where the key is the same and only a helper or a constant was edited."""
        wanted = sorted({i for _, doubtful in doubts for i in doubtful})
        before: dict[str, tuple[Signature, str]] = {}
        if wanted:
            before = jobs.run(_signatures, [(self, wanted)])[0]
        jobs_ = [(self, changed, {i: before[i][0] for i in doubtful if i in before}) for changed, doubtful in doubts]
        for (_, doubtful), after in zip(doubts, jobs.run(_lowered, jobs_)):
            for i, what in doubtful.items():
                if i not in before or after.get(i) is None:
                    report.undecided.append(what)
                elif after[i] == before[i][1]:
                    report.no_effect += 1
                else:
                    report.asked["stale"]["decided by TTIR"] += 1
                    report.bad["stale"].append(what)

    def neutral(self, base: Version, report: Report) -> None:
        kernels = [k for k, _, _ in base.values()]
        kinds = [*neutral.KINDS, *neutral.FILES][: self.few]
        files = [neutral.edited(self.source, kernels, kind) for kind in kinds]
        for kind, changed, (version, _) in zip(kinds, files, self.versions(files)):
            edited = {i for i, (k, _, _) in base.items() if any(file in changed for file, _ in {k.own, *k.helpers})}
            self.same(base, version, edited, kind, report)

    def anywhere(self, base: Version, report: Report) -> None:
        """Nothing changed but the process: hash seed, home, current directory and the order of imports."""
        before, here = dict(os.environ), os.getcwd()
        os.environ |= {"PYTHONHASHSEED": "4711", "HOME": tempfile.gettempdir(), "PYTHONPATH": os.pathsep.join(sys.path)}
        os.chdir(tempfile.gettempdir())
        try:
            found = jobs.run(_keys, [(self, {}, True)], method="spawn")[0]
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)
        if isinstance(found, jobs.Lost):
            raise RuntimeError(f"{self.package}: {found.why}")
        self.same(base, found[0], set(base), "another process", report)

    def same(self, base: Version, version: Version, edited: set[str], kind: str, report: Report) -> None:
        for i in sorted(edited & version.keys()):
            report.asked["needless"][kind] += 1
            report.bad["needless"] += [f"{i}: {kind}"] if version[i][1] != base[i][1] else []

    def planted(self, base: Version, report: Report) -> None:
        kernels = [k for k, _, _ in base.values()]
        made = [
            (kind, *planted.edited(self.source, self.package, kernels, kind)) for kind in [*planted.KINDS][: self.few]
        ]
        found = iter(self.versions([version for _, versions, _ in made for version in versions]))
        for kind, _, held in made:
            (one, _), (other, _) = next(found), next(found)
            for i in sorted(one.keys() & other.keys()):
                module, _, rest = i.partition(":")
                if f"{module}:{rest.partition('#')[0].rpartition('.')[2]}" in held:
                    report.asked["stale"][f"planted {kind}"] += 1
                    report.bad["stale"] += [f"{i}: planted {kind}"] if one[i][1] == other[i][1] else []

    def linked(self, base: Version, report: Report) -> None:
        ids = sorted(base)
        random.Random(self.package).shuffle(ids)
        parts = [ids[n : n + LINK_AT_ONCE] for n in range(0, len(ids), LINK_AT_ONCE)]
        for part, texts in zip(parts, jobs.run(_linked, [(self, part) for part in parts])):
            if isinstance(texts, jobs.Lost):
                report.undecided += [f"{i}: not linked, {texts.why.strip().splitlines()[-1]}" for i in part]
                continue
            report.asked["unlinked"]["kernels"] += len(part)
            report.bad["unlinked"] += [f"{i}: {t[1]}" for i, t in texts.items() if t[0] is None]
            there = {i: (name, text, known) for i, (text, name, known) in texts.items() if text and known}
            alone = jobs.run(_alone, [({i: (n, t, k[0]) for i, (n, t, k) in there.items()},)])[0]
            for i, (_, _, known) in there.items():
                report.asked["different"]["kernels"] += 1
                got = alone.why if isinstance(alone, jobs.Lost) else alone[i]
                report.bad["different"] += [f"{i}: {got[:200]}"] if got != known[1] else []


# --- what runs in a process of its own


def _loaded(corpus: Corpus, folder: str, files: dict[str, bytes], backwards: bool = False) -> Any:
    from tests.corpus.machine import install

    install()
    tree = Path(folder).resolve()
    shutil.copytree(
        corpus.source / corpus.package, tree / corpus.package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    for name, data in files.items():
        (tree / name).write_bytes(data)
    kernels, failed = load(tree, corpus.package, backwards)
    chosen = sorted(kernels, key=lambda i: hashlib.sha256(i.encode()).digest())[: corpus.limit]
    return {i: kernels[i] for i in sorted(chosen)}, failed


def _keys(corpus: Corpus, files: dict[str, bytes], backwards: bool) -> tuple[Version, dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        kernels, failed = _loaded(corpus, folder, files, backwards)
        return {i: (kernel, *corpus.key(top)) for i, (kernel, top) in kernels.items()}, failed


def _stack(top: Any) -> list[Any]:
    return [top, *_stack(top.fn)] if hasattr(top, "fn") and not hasattr(top, "params") else [top]


def _signatures(corpus: Corpus, ids: list[str]) -> dict[str, tuple[Signature, str]]:
    with tempfile.TemporaryDirectory() as folder:
        kernels, _ = _loaded(corpus, folder, {})
        stacks = {i: _stack(kernels[i][1]) for i in ids}
        found = {i: find(stack[-1], stack, SEARCH_S) for i, stack in stacks.items()}
        return {i: signature for i, signature in found.items() if signature is not None}


def _lowered(corpus: Corpus, files: dict[str, bytes], wanted: dict[str, Signature]) -> dict[str, str | None]:
    if not wanted:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        kernels, _ = _loaded(corpus, folder, files)
        found: dict[str, str | None] = {}
        for i, signature in wanted.items():
            try:
                found[i] = lowered(_stack(kernels[i][1])[-1], signature)
            except Exception:
                found[i] = None
        return found


def _linked(corpus: Corpus, ids: list[str]) -> dict[str, tuple[str | None, str, Any]]:
    """Linked text, the kernel's name or the reason why there is no text, and a signature with its TTIR."""
    from kcache import Opaque, fingerprint

    texts: dict[str, tuple[str | None, str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        kernels, _ = _loaded(corpus, folder, {})
        for i in ids:
            kernel, top = kernels[i]
            stack = _stack(top)
            try:
                texts[i] = fingerprint(top).source, kernel.name, find(stack[-1], stack, SEARCH_S)
            except Opaque as error:
                texts[i] = None, str(error), None
    return texts


def _alone(wanted: dict[str, tuple[str, str, Signature]]) -> dict[str, str]:
    """TTIR of each linked text, or what went wrong."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (i, (name, text, signature)) in enumerate(wanted.items()):
            path = Path(folder) / f"linked_{number}.py"
            path.write_text(text)
            try:
                spec = importlib.util.spec_from_file_location(path.stem, path)
                assert spec and spec.loader
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                found[i] = lowered(getattr(module, name), signature, 30)
            except Exception as error:
                found[i] = f"{type(error).__name__}: {error}"
    return found


def _files(source: Path, edits: list[semantic.Edit]) -> dict[str, bytes]:
    from tests.corpus.text import changed

    files = {e.file for e in edits}
    return {f: changed((source / f).read_bytes(), [e.change for e in edits if e.file == f]) for f in sorted(files)}


def located(package: str, path: list[str] | None = None) -> Path:
    """The folder that holds an installed package, without importing it. Raises `ImportError` if there is none."""
    for folder in path or sys.path:
        if (Path(folder) / package).is_dir():
            return Path(folder).resolve()
    raise ImportError(f"{package} is not installed; `make corpus` installs the pinned version")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("packages", nargs="+", help="names by which they are imported")
    arguments.add_argument("--path", action="append", help="folder that holds a package which is not installed")
    arguments.add_argument("--limit", type=int, help="ask for this many kernels of each package")
    arguments.add_argument("--json", type=Path, help="write all figures and lists there")
    given = arguments.parse_args()
    reports = []
    for package in given.packages:
        reports.append(Corpus(package, located(package, given.path), limit=given.limit).score())
        print("\n".join(reports[-1].lines()), flush=True)
    if given.json:
        given.json.write_text(json.dumps([vars(r) for r in reports], indent=1))
    return 0 if all(r.good() for r in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
