"""Runs torch's own tests of its caches, in stock and with kcache switched on, and compares them test by test.

    python tests/conformance/run.py PATH [FILE ...]

`PATH` is a checkout of torch's repository at the release that is installed; the files are
those of `FILES` below it unless others are named. Each file runs twice in processes of its
own, with empty caches: once under `KCACHE=0`, once under `KCACHE=1`, as a user would switch
kcache on. The table lists every test whose outcome differs. Exit status 1 if a test passes
in stock and fails with kcache without a sentence in `explained.py`, or if no test ran.

What needs a GPU is skipped by torch's tests themselves, on both sides.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))

from explained import EXPLAINED

FILES = ("test/inductor/test_codecache.py", "test/dynamo/test_aot_autograd_cache.py")
DIRECTORIES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "KCACHE_DIR", "TMPDIR", "HOME")
OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}

Results = dict[str, str]
"""`Class.test` -> passed, failed or skipped."""


def outcomes(file: Path, *, kcache: bool, timeout: int, select: str) -> Results:
    """Outcome of every test in `file`, run in a process of its own. Raises `click.ClickException` if pytest does not
    get as far as a report."""
    with tempfile.TemporaryDirectory() as folder:
        own = {name: str(Path(folder) / name.lower()) for name in DIRECTORIES}
        for path in own.values():
            Path(path).mkdir()
        report = Path(folder) / "report.xml"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KCACHE")}
        env = {**kept, **own, "KCACHE": "1" if kcache else "0"}
        command = [sys.executable, "-m", "pytest", file.name, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        if select:
            command += ["-k", select]
        done = subprocess.run(command, cwd=file.parent, env=env, capture_output=True, text=True, timeout=timeout)
        if not report.exists():
            raise click.ClickException(f"{file}: pytest made no report\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return read(report)


def read(report: Path) -> Results:
    """Outcome by test of a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = ".".join(filter(None, [case.get("classname", "").rpartition(".")[2], case.get("name")]))
        found[name] = next((OUTCOMES[child.tag] for child in case if child.tag in OUTCOMES), "passed")
    return found


def why(name: str) -> str | None:
    """The sentence that explains a test's failure, looked up by its name and by its name without parameters."""
    return next((EXPLAINED[known] for known in EXPLAINED if name == known or name.startswith(f"{known}_")), None)


def compare(stock: Results, ours: Results) -> list[tuple[str, str, str]]:
    """(test, outcome in stock, outcome with kcache) where the two differ; a test that one side lacks is `absent`."""
    names = dict.fromkeys([*stock, *ours])
    rows = [(name, stock.get(name, "absent"), ours.get(name, "absent")) for name in names]
    return [row for row in rows if row[1] != row[2]]


@click.command(help=__doc__.partition("\n")[0])
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("files", nargs=-1)
@click.option("--select", "-k", default="", help="Run the tests that match this expression of pytest's.")
@click.option("--timeout", default=7200, show_default=True, help="Seconds for one file on one side.")
def main(path: Path, files: tuple[str, ...], select: str, timeout: int) -> None:
    """Print the table and exit with its verdict."""
    unexplained, ran = [], 0
    for name in files or FILES:
        file = (path / name).resolve()
        if not file.exists():
            raise click.ClickException(f"{file} does not exist; PATH is to be a checkout of torch's repository")
        stock, ours = (outcomes(file, kcache=on, timeout=timeout, select=select) for on in (False, True))
        ran += len(stock)
        print(f"{name}: {len(stock)} tests")
        for label, results in (("stock", stock), ("kcache", ours)):
            print(f"  {label:7}", ", ".join(f"{count} {what}" for what, count in sorted(Counter(results.values()).items())))
        for test, before, after in compare(stock, ours):
            reason = why(test) if before == "passed" else ""
            print(f"  {test}: {before} in stock, {after} with kcache{f': {reason}' if reason else ''}")
            if before == "passed" and reason is None:
                unexplained.append(test)
    print(f"{len(unexplained)} unexplained")
    sys.exit(1 if unexplained or not ran else 0)


if __name__ == "__main__":
    main()
