"""Counts and sizes as people write and read them: 100M, 2GB, 512MiB; 1.2 MB, 1.23M, 5:02 min."""

from __future__ import annotations

import re

from tokenmill.errors import UsageError

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_FACTORS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_COUNT = re.compile(r"\s*([0-9]{1,40}(?:_[0-9]{1,40})*(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*")


def _in_64_bits(number: int, what: str) -> int:
    if number >= 1 << 63:
        raise UsageError(f"{what}: {number} is too large", hint="the largest is 2**63 - 1")
    return number


def parse_count(text: str | int, *, what: str = "a number", unit: str = "") -> int:
    """'100M' -> 100000000, '64KiB' -> 65536. k, M, G are decimal; KiB, MiB, GiB are binary."""
    if isinstance(text, int) and not isinstance(text, bool):
        return _in_64_bits(text, what)
    match = _COUNT.fullmatch(str(text))
    if match:
        number, suffix = match[1].replace("_", ""), match[2].lower()
        factor = _FACTORS.get(suffix) or _FACTORS.get(suffix.removesuffix(unit))
        if factor:
            whole, _, decimals = number.partition(".")
            return _in_64_bits(int(whole + decimals) * factor // 10 ** len(decimals), what)
    raise UsageError(
        f"{what}: {text!r} is not a number",
        hint="write a whole number, or one with k, M, G (decimal) or KiB, MiB, GiB (binary)",
    )


def parse_bytes(text: str | int, *, what: str = "a size") -> int:
    """'1.5GB' -> 1500000000, '2GiB' -> 2147483648."""
    return parse_count(text, what=what, unit="b")


def show_bytes(size: float) -> str:
    """1234567 -> '1.2 MB'; '?' where it is not known."""
    if size < 0:
        return "?"
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"


def show_speed(bytes_per_second: float) -> str:
    """Always in MB/s, so that two speeds can be compared at a glance."""
    speed = bytes_per_second / 1e6
    return f"{speed:,.0f} MB/s" if speed >= 10 else f"{speed:.1f} MB/s"


def show_count(number: float, unit: str = "") -> str:
    """1234567 -> '1.23M'."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.2f}{suffix}{unit}"
    return f"{number:.0f}{unit}"


def counted(number: int, noun: str) -> str:
    """1 -> '1 document', 2000 -> '2,000 documents'."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def show_duration(seconds: float) -> str:
    """63.2 -> '1:03 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d} min"
