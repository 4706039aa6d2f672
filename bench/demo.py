"""What kcache does, beside stock torch, in two minutes: `python bench/demo.py [--json FILE]`.

A small model with a user's own operator is trained for one step, in a fresh process each time, with caches of its own
for each side: cold, warm, warm after every other cache directory is gone, after an edit to a comment, and after an edit
to the operator's backward. On a GPU a program with a user's own Triton kernel follows; without one, the kernel's
fingerprint is shown before and after edits.

Exits 1 if any value under kcache is wrong, or if a run that must hit does not. What stock torch does is only shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sandbox import SIDES, Outcome, ProgramFailed, Sandbox, gpu_name, versions


@dataclass(frozen=True)
class Edit:
    """A replacement in one of the programs' files, and whether it may change what is compiled."""

    text: str
    file: str
    old: str
    new: str
    must_hit: bool


@dataclass(frozen=True)
class Program:
    """A program and what is done to it, one edit after another."""

    file: str
    title: str
    edits: tuple[Edit, ...]


TRAIN = Program(
    "train.py",
    "One training step through a user's own operator, on the CPU",
    (
        Edit(
            "warm, a comment edited",
            "quantize.py",
            "    # The gradient passes straight through.\n",
            "    # The gradient passes straight through, within the range.\n    # Outside of it there is none.\n",
            must_hit=True,
        ),
        Edit(
            "warm, the operator's backward edited",
            "quantize.py",
            "return grad * (x.abs() <= 1.0), None",
            "return grad * torch.exp(-x.abs()), None",
            must_hit=False,
        ),
    ),
)

_COMMENT = Edit(
    "a comment edited",
    "activation.py",
    "    # One block of the input per program.\n",
    "    # Each program takes one block of the input.\n\n",
    must_hit=True,
)
_HELPER = Edit("its helper edited", "activation.py", "x, x * SLOPE)", "x, x * SLOPE - 0.125)", must_hit=False)
_CONSTANT = Edit("its constant edited", "activation.py", "tl.constexpr(0.25)", "tl.constexpr(0.5)", must_hit=False)

KERNELS = Program("kernels.py", "A graph with a user's own Triton kernel, on the GPU", (_COMMENT, _HELPER, _CONSTANT))


@dataclass(frozen=True)
class Row:
    """One case of one program, on both sides."""

    case: str
    must_hit: bool
    outcomes: dict[str, Outcome]

    def faults(self) -> Iterator[str]:
        """What kcache got wrong here, in words."""
        outcome = self.outcomes["kcache"]
        if not outcome.right:
            yield f"{self.case}: kcache gave a wrong value"
        if self.must_hit and not outcome.full_hit:
            yield f"{self.case}: kcache did not hit ({outcome.blame()})"


def play(program: Program, root: Path) -> Iterator[Row]:
    """Run all cases of `program`, both sides of one case after the other, and yield each as it is done."""
    sides = {side: Sandbox(side, root / program.file) for side in SIDES}

    def row(case: str, must_hit: bool) -> Row:
        return Row(case, must_hit, {side: sandbox.run(program.file) for side, sandbox in sides.items()})

    yield row("cold", must_hit=False)
    yield row("warm", must_hit=True)
    for sandbox in sides.values():
        sandbox.forget()
    yield row("warm, other directories deleted", must_hit=True)
    for edit in program.edits:
        for sandbox in sides.values():
            sandbox.edit(edit.file, edit.old, edit.new)
        yield row(edit.text, edit.must_hit)


_WIDTHS = (9, 7, 7, 7)


def _cells(*texts: str) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, _WIDTHS, strict=True))


def heading() -> str:
    """The two heading lines of a table."""
    columns = _cells("first s", "fx", "aot", "value")
    return f"{'':38}" + "  ".join(f"{side:>{sum(_WIDTHS)}}" for side in SIDES) + f"\n{'':38}" + "  ".join([columns] * 2)


def line(row: Row) -> str:
    """One row of a table: for each side seconds, hits/misses of two layers, and whether the value is right."""
    cells = []
    for side in SIDES:
        outcome = row.outcomes[side]
        # A full hit with a wrong value is an artifact of a program that no longer exists.
        value = "right" if outcome.right else "STALE" if outcome.full_hit else "WRONG"
        cells.append(_cells(f"{outcome.first_s:.2f}", outcome.hits("fx"), outcome.hits("aot"), value))
    return f"{row.case:38}" + "  ".join(cells)


def fingerprints(root: Path) -> Iterator[tuple[str, str, str | None]]:
    """The kernel's fingerprint as written and after each edit: the case, the digest, and what is wrong with it."""
    sandbox = Sandbox("kcache", root / "fingerprint")
    written = sandbox.output("fingerprint.py").strip()
    yield "as written", written, None
    for edit in (_COMMENT, _HELPER, _CONSTANT):
        sandbox.restore()
        sandbox.edit(edit.file, edit.old, edit.new)
        digest = sandbox.output("fingerprint.py").strip()
        right = (digest == written) == edit.must_hit
        yield edit.text, digest, None if right else f"{edit.text}: the fingerprint should {_verb(edit)}"


def _verb(edit: Edit) -> str:
    return "stay" if edit.must_hit else "change"


def show(program: Program, root: Path, report: dict[str, Any]) -> list[str]:
    """Print the table of `program` row by row, add it to `report`, and return what kcache got wrong."""
    print(f"{program.title} (bench/programs/{program.file})\n\n{heading()}", flush=True)
    faults: list[str] = []
    rows: list[dict[str, Any]] = []
    for row in play(program, root):
        print(line(row), flush=True)
        faults += row.faults()
        rows.append(asdict(row))
    report[program.file] = rows
    print("\nfirst s: seconds of the first step, imports not counted. fx, aot: hits/misses of torch's cache layers.")
    if any(row["outcomes"]["stock"]["right"] is False for row in rows):
        print("STALE: stock torch hit an artifact of the text before the edit, and computed the old program's numbers.")
    print(flush=True)
    return faults


def show_fingerprints(root: Path, report: dict[str, Any]) -> list[str]:
    """Print a kernel's fingerprints, add them to `report`, and return what is wrong with them."""
    if find_spec("triton") is None:
        print("Triton is not installed, so no kernel's fingerprint is shown.\n")
        return []
    print("The fingerprint of a Triton kernel (bench/programs/activation.py); no GPU needed\n")
    faults: list[str] = []
    rows: list[dict[str, Any]] = []
    for case, digest, fault in fingerprints(root):
        note = "" if not rows else "same" if digest == rows[0]["digest"] else "differs"
        print(f"{case:38}{digest:>16}  {note}".rstrip(), flush=True)
        faults += [fault] if fault else []
        rows.append({"case": case, "digest": digest})
    report["fingerprint.py"] = rows
    print()
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description="What kcache does, beside stock torch.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"versions": versions()}
    about = report["versions"]
    print(f"torch {about['torch']}, triton {about['triton']}, {about['cpu']}, {about.get('gpu', 'no GPU')}\n")
    with tempfile.TemporaryDirectory(prefix="kcache-demo-") as folder:
        root = Path(folder)
        try:
            faults = show(TRAIN, root, report)
            faults += show(KERNELS, root, report) if gpu_name() else show_fingerprints(root, report)
        except ProgramFailed as error:
            faults = [str(error)]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    print("\n".join(f"FAILED: {fault}" for fault in faults) or "kcache: every value is right, and every warm run hit.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
