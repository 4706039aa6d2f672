"""A slice of `make corpus`, and that it sees keys which are wrong."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.corpus.run import Corpus, Report, located

try:
    LIGER = located("liger_kernel")
except ImportError:
    pytest.skip("liger-kernel is not installed", allow_module_level=True)


@pytest.mark.slow
def test_slice() -> None:
    """A few kernels of liger-kernel under a few edits of each family: nothing stale, needless, opaque or different."""
    report = Corpus("liger_kernel", LIGER, limit=5, few=2).score()
    text = "\n".join(report.lines())
    assert report.good() and not any(report.bad.values()), text
    assert report.kernels == 5 and report.asked["different"].total() >= 4, text


def one_for_all(kernel: Any) -> tuple[str, list[str]]:
    return "a key", []


def ever_new(kernel: Any) -> tuple[str, list[str]]:
    return os.urandom(8).hex(), []


@pytest.mark.slow
@pytest.mark.parametrize(("key", "stale", "needless"), [(one_for_all, True, False), (ever_new, False, True)])
def test_wrong_keys_are_seen(key: Any, stale: bool, needless: bool) -> None:
    corpus = Corpus("liger_kernel", LIGER, key, limit=5, few=1)
    report = Report("liger_kernel")
    base, _ = corpus.versions([{}])[0]
    corpus.semantic(base, report)
    corpus.neutral(base, report)
    corpus.planted(base, report)
    assert (bool(report.bad["stale"]), bool(report.bad["needless"])) == (stale, needless), "\n".join(report.lines())
    assert not report.good()
