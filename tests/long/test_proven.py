"""The fast encoder serves only what is proven; all else has the library's ids too."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from support.find_gap import find_gap
from support.proven import code_points
from support.tokenizer_files import (
    write_json,
)
from tokenizers import normalizers

from tokenmill.tokenizer.encoders.preparation import nfkc_active
from tokenmill.tokenizer.encoders.screens import merge
from tokenmill.tokenizer.files import find_encoding
from tokenmill.tokenizer.proof import gap_tables


def test_python_normalizes_as_the_library_does() -> None:
    """For every code point that is not in the table of newer ones, alone and between marks."""
    newer = code_points(gap_tables.NEWER)
    active = code_points(nfkc_active())
    library = normalizers.NFKC()
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and c not in newer]
    for context in ("{}", "x{}\u0323y", "x\u0345{}y", "e{}\u0301 ", "\u1100{}\u11a8"):
        for start in range(0, len(points), 512):
            block = points[start : start + 512]
            text = "\n0\n".join(context.format(chr(c)) for c in block)
            assert library.normalize_str(text) == unicodedata.normalize("NFKC", text)
    text = "".join(chr(c) for c in points if c not in active)
    assert library.normalize_str(text) == text, "without active code points nothing changes"


def test_gigatoken_normalizes_as_the_library_does(tmp_path: Path) -> None:
    path = write_json(tmp_path / "t.json", "qwen2")
    contexts = ("{}", "x{}\u0323y", "x\u0345{}y", "e{}\u0301 ", "\u1100{}\u11a8")
    gap = find_gap(find_encoding(str(path)), contexts)
    shipped = merge(gap_tables.GAP, gap_tables.SYMBOLS_GAP, gap_tables.NEWER)
    assert merge(gap, shipped) == shipped
