"""How rows look: labels on the left, numbers in one column, ratios with their percentage."""

from __future__ import annotations

import datetime

LABEL = 24
NUMBER = 12


def row(label: str, value: object, note: str = "", *, indent: int = 0) -> str:
    """`label:` padded, `value` right-aligned, `note` behind it. `indent` counts levels of two spaces."""
    text = f"{'  ' * indent}{label}:"
    return f"{text:<{LABEL}}{value!s:>{NUMBER}}{'   ' + note if note else ''}"


def share(part: float, whole: float) -> str:
    """`(41.6 %)`, or nothing of nothing."""
    return f"({100 * part / whole:.1f} %)" if whole else ""


def moment(ns: int) -> str:
    """Local date and time of `ns` nanoseconds since the epoch."""
    return datetime.datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M")


def plural(count: int, one: str, many: str) -> str:
    """`1 entry`, `2 entries`."""
    return f"{count} {one if count == 1 else many}"
