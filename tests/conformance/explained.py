"""Tests of torch's that pass in stock, fail with kcache, and why kcache is right; `run.py` prints the sentences."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {}
"""Sentence by test, named as `Class.test`; a parametrized test by the name before its parameters too."""
