"""Sizes and durations, as people write them and as people read them.

Sizes are bytes, durations are seconds. Decimal (`GB`) and binary (`GiB`) units differ, as
they should; a bare letter (`10G`) is binary. A text that cannot be read raises `ValueError`
with the text in it.
"""

from __future__ import annotations

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SIZES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _SIZES[_letter] = _SIZES[_letter + "ib"] = 1 << (10 * _power)
    _SIZES[_letter + "b"] = 1000**_power
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str | int) -> int:
    """Bytes in `text`: `10GiB`, `512 MiB`, `1.5G`, `4096`."""
    return text if isinstance(text, int) else int(_parse(text, _SIZES, "size, such as 10GiB"))


def parse_duration(text: str | int | float) -> float:
    """Seconds in `text`: `7d`, `12h`, `30m`, `90`."""
    return float(text) if isinstance(text, (int, float)) else _parse(text, _SECONDS, "duration, such as 7d or 12h")


def _parse(text: str, units: dict[str, int] | dict[str, float], what: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a {what}")
    return float(match[1]) * unit if "." in match[1] else int(match[1]) * unit


def format_size(count: int) -> str:
    """`count` bytes for people: `0 B`, `1.5 KiB`, `10 GiB`."""
    if count < KIB:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95 or unit == "TiB":
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def format_seconds(seconds: float) -> str:
    """`seconds` for people: `85 us`, `4.2 ms`, `3.1 s`, `2 min 05 s`, `3 h 20 min`, `2 d 04 h`."""
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"
