"""The fast encoder serves only what is proven; all else has the library's ids too."""

from __future__ import annotations

from tokenmill.tokenizer.proof import gap_tables

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


DIGITS = {"type": "Digits", "individual_digits": True}


def code_points(ranges: gap_tables.Ranges) -> set[int]:
    return {c for first, last in ranges for c in range(first, last + 1)}
