"""Tests of torch's that pass in stock, fail with kcache, and why kcache is right; `run.py` prints the sentences."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "AOTAutogradCachePicklerTests.test_private_namespace": (
        "expects a bypass for a user's function that was put into torch's namespace; kcache follows that function, so "
        "its code is in the key"
    ),
}
"""Sentence by test, named as `Class.test`; a parametrized test by the name before its parameters too."""
