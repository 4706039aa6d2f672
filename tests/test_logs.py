"""`KCACHE_LOG`: what reaches stderr and a file, in processes as a user starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LOGGED = """
import logging, sys
if "configured" in sys.argv:
    logging.basicConfig(format="%(name)s said %(message)s")
from kcache import logs
from kcache.config import Settings
log = logging.getLogger("kcache")
detach = logs.attach(Settings.load().log)
log.info("kcache: fx bypass: no reason")
log.warning("kcache: fx: odd")
log.debug("kcache: fx: odd", exc_info=ValueError("odd"))
detach()
log.info("kcache: after")
"""
ENABLED = """
import kcache
from kcache.hooks import session
kcache.enable()
session.current().bypass("fx", "no reason")
kcache.disable()
session.log.info("kcache: after")
"""
BYPASS, TROUBLE = "kcache: fx bypass: no reason", "kcache: fx: odd"


def lines(value: str, *arguments: str, program: str = LOGGED) -> list[str]:
    """The lines of kcache's on stderr."""
    environment = {**os.environ, "KCACHE_LOG": value, "KCACHE_STRICT": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "kcache" in line or "ValueError" in line]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", [TROUBLE]),
        ("info", [BYPASS, TROUBLE]),
        ("INFO", [BYPASS, TROUBLE]),
        ("warning", [TROUBLE]),
        ("error", []),
        ("debug", [BYPASS, TROUBLE, TROUBLE, "ValueError: odd"]),
    ],
)
def test_levels_go_to_stderr(value: str, expected: list[str]) -> None:
    assert lines(value) == expected


def test_enabling_attaches_and_disabling_detaches() -> None:
    pytest.importorskip("torch")
    assert lines("info", program=ENABLED) == [BYPASS]


def test_a_program_with_logging_of_its_own_prints_each_line_once() -> None:
    assert lines("info", "configured") == [BYPASS, TROUBLE]
    assert lines("", "configured") == [f"kcache said {TROUBLE}"]


def test_a_path_is_a_file_that_is_appended_to(tmp_path: Path) -> None:
    """With time, process and level; warnings are seen as ever."""
    path = tmp_path / "kcache.log"
    assert lines(str(path)) == [TROUBLE]
    assert lines(str(path), "configured") == [f"kcache said {TROUBLE}"]
    text = path.read_text()
    assert len(re.findall(rf"^\d{{4}}-\d\d-\d\d \S+ \d+ INFO {re.escape(BYPASS)}$", text, re.MULTILINE)) == 2
    assert text.count("ValueError: odd") == 2
    assert "after" not in text


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "none" / "kcache.log"
    code = "import kcache; print(kcache.enable())"
    said = lines(str(path), program=code)
    assert said == [f"kcache is off: log = '{path}' cannot be written: No such file or directory"]
