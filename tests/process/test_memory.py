"""What must be held whole: measured before it is touched, refused with the memory it needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from support.memory import SMALL, passes, refusal

import tokenmill
from tokenmill.errors import TooLargeError
from tokenmill.system.memory import MemoryShare


@pytest.mark.parametrize("suffix", [".txt", ".txt.zst", ".jsonl", ".jsonl.zst"])
def test_a_document_that_may_not_be_cut(tmp_path: Path, suffix: str) -> None:
    content = b"some words here " * 1_200_000  # 19 MB
    if "json" in suffix:
        content = b'{"text": "' + content + b'"}\n'
    content += b"\n" * 8_000_000 if suffix == ".txt" else b""  # beyond what a range reads
    path = tmp_path / f"a{suffix}"
    if suffix.endswith("zst"):
        content = pyarrow.compress(content, "zstd", asbytes=True)
    path.write_bytes(content)
    if "json" in suffix:  # only once it is decoded is the text known: the worker refuses it
        with pytest.raises(TooLargeError) as caught:
            tokenmill.prepare(
                path, tmp_path / "o", workers=1, memory="650MB", max_tokens="1G", val="none"
            )
        said = f"{caught.value.message}\n{caught.value.hint}"
    else:
        said = refusal(path, may_cut=False)
    assert f"a{suffix}: " in said
    assert "bytes" in said
    assert "--memory" in said or "memory='" in said
    assert passes(path, SMALL) == 1
    assert passes(path, MemoryShare(10**9, 1), may_cut=False) == 1


def test_the_encoder_is_not_given_a_word_it_has_no_memory_for(tmp_path: Path) -> None:
    """No white space in 12 MB: some 25 bytes of memory for each byte of the word."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 12_000_000)
    with pytest.raises(TooLargeError, match="12,000,000 of them without white space") as caught:
        tokenmill.prepare(path, tmp_path / "o", workers=1, memory="650MB", val="none")
    assert "memory='1030MB'" in caught.value.hint
