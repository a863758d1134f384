"""Text files: documents as `str.split` gives them, and cuts that no token notices."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator

import pyarrow
import pytest
from support import reference
from support.tokenizer_files import write_json

from tokenmill.engines import unit
from tokenmill.inputs import segments
from tokenmill.inputs.readers import fragments as text_batches
from tokenmill.inputs.readers import separators
from tokenmill.inputs.readers import text as text_files


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All sizes a twentieth of the real ones, here and in forked workers: less text will do."""
    for module, name in (
        (segments, "SEGMENT_BYTES"),
        (unit, "UNIT_BYTES"),
        (text_files, "TEXT_WINDOW"),
        (text_files, "BATCH_BYTES"),
        (text_files, "LONG_BYTES"),
        (text_batches, "BATCH_BYTES"),
        (text_batches, "LONG_BYTES"),
        (text_files, "BLOCK_BYTES"),
        (separators, "BLOCK_BYTES"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) // 20)
    text_files._known.cache_clear()
    yield
    text_files._known.cache_clear()


@pytest.fixture(scope="module")
def cut_encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[str], list[int]]]:
    """The reference of every encoding that may be cut."""
    from tokenizers import Tokenizer

    encoders: dict[str, Callable[[str], list[int]]] = {
        name: reference.encoding(name).encode_ordinary
        for name in ("gpt2", "p50k_base", "cl100k_base", "o200k_base")
    }
    folder = tmp_path_factory.mktemp("json")
    for name in ("gpt2", "qwen2", "deepseek", "llama3"):
        tokenizer = Tokenizer.from_file(str(write_json(folder / name, name)))
        tokenizer.encode_special_tokens = True
        encoders[f"{name}.json"] = lambda text, t=tokenizer: (
            t.encode(  # type: ignore[misc]
                text, add_special_tokens=False
            ).ids
        )
    return encoders


def novel(texts: list[str], size: int) -> str:
    """One long text full of blank lines."""
    long = "\n\n".join(text for text in texts if text.strip())
    return (long * (size // len(long.encode()) + 1))[:size]


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, 1),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}
