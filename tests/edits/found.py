"""Edits of kinds that were first met in public packages (`make corpus`)."""

from __future__ import annotations

from tests.edits import SEMANTIC, Row
from tests.edits.kernels import jit, kern

ROWS: list[Row] = []


def atom(name: str, value: str, pre: str, old: str, new: str, **keywords: str) -> None:
    """A semantic row: `{}` in `pre` and in `value` is `old`, then `new`."""
    before, after = (kern(value.replace("{}", x), pre.replace("{}", x), **keywords) for x in (old, new))
    ROWS.append(Row(name, SEMANTIC, {"kern.py": before}, {"kern.py": after}))


atom("Python function of Triton's", "scale(x)", jit("x.to(tl.core.get_int_dtype({}, True))"), "16", "32")
atom("enumeration of Triton's", "tl.maximum(x, y, propagate_nan=tl.PropagateNan.{})", "", "ALL", "NONE")
