"""Tokenizers that users bring: exact against the library each belongs to, and nothing guessed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from support.commands import command, token_bytes
from support.find_gap import find_gap
from support.inputs import SHARED, write_parquet
from support.tokenizer_files import train_sentencepiece, write_json
from support.tokenizers import (
    folder,  # noqa: F401  # noqa: F401  # noqa: F401  # noqa: F401
    json_file,  # noqa: F401  # noqa: F401
    library_ids,
    open_library,
)

import tokenmill as mill
from tokenmill.tokenizer.bundled import bundled_ranks_file
from tokenmill.tokenizer.encoders.screens import merge
from tokenmill.tokenizer.files import find_encoding
from tokenmill.tokenizer.proof.gap_tables import GAP, SYMBOLS_GAP


@pytest.mark.parametrize("name", ["qwen2", "deepseek"])
def test_the_tables_cover_every_code_point_that_differs(folder: Path, name: str) -> None:
    path = write_json(folder / f"{name}.json", name, normalizer=None)
    shipped = merge(GAP, SYMBOLS_GAP)
    gap = find_gap(find_encoding(str(path)))
    assert merge(gap, shipped) == shipped
    if name == "deepseek":
        assert merge(gap, SYMBOLS_GAP) == gap, "the table holds nothing that does not differ"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared corpus is not here")
@pytest.mark.parametrize("name", ["qwen2_5", "deepseek_v4", "mistral_spm"])
def test_the_shared_corpus_equals_the_library(name: str, tmp_path: Path) -> None:
    """With strings of special and other added tokens mixed into every document.

    Every fifth document; all of them with TOKENMILL_WHOLE_CORPUS=1 (three minutes each).
    """
    import pyarrow.parquet

    step = 1 if os.environ.get("TOKENMILL_WHOLE_CORPUS") else 5
    folder = SHARED / "vocab" / name
    path = next(folder.iterdir())
    encoding = find_encoding(str(folder))
    strings = list(encoding.special_tokens)[:40]
    if path.suffix == ".json":
        tokens = json.loads(path.read_text())["added_tokens"]
        strings += [token["content"] for token in tokens if not token["special"]]
    inputs = []
    expected = np.zeros(0, np.uint32)
    pieces = []
    for number, corpus in enumerate(sorted((SHARED / "corpus").glob("*.parquet"))):
        texts = pyarrow.parquet.read_table(corpus, columns=["text"]).column(0).to_pylist()[::step]
        mixed = [
            text[: len(text) // 2] + strings[(number + i) % len(strings)] + text[len(text) // 2 :]
            for i, text in enumerate(texts)
        ]
        inputs.append(write_parquet(tmp_path / corpus.name, mixed, rows=1000))
        pieces += library_documents(path, mixed, encoding.eot_id)
    expected = np.concatenate(pieces)
    mill.prepare(inputs, tmp_path / "out", tokenizer=str(folder), val="none")
    dtype = np.uint16 if encoding.vocab_size <= 1 << 16 else np.uint32
    assert np.array_equal(np.fromfile(tmp_path / "out" / "train.bin", dtype), expected)


def library_documents(path: Path, texts: list[str], eot: int) -> list[np.ndarray]:
    """Ids of many texts from the library, on all cores, a document too long for it in pieces."""
    if path.suffix == ".model":
        encoded = open_library(path, 0).encode(texts, num_threads=2)
        return [np.array([*ids, eot], np.uint32) for ids in encoded]
    tokenizer = open_library(path, 0)
    result = []
    for start in range(0, len(texts), 200):
        batch = tokenizer.encode_batch_fast(texts[start : start + 200], add_special_tokens=False)
        result += [np.array([*encoded.ids, eot], np.uint32) for encoded in batch]
    return result


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_sentencepiece_model_gives_the_ids_of_its_library(
    folder: Path, tmp_path: Path, texts: list[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = train_sentencepiece(folder / f"{kind}.model", texts[:200], kind)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mixed = [*texts[:100], *(f"{t[:40]}<s>[INST]</s>{t[:20]}" for t in texts[:20])]
    source = write_parquet(tmp_path / "a.parquet", mixed)
    result = mill.prepare(source, tmp_path / "o", tokenizer=str(path), val="none", bos_token="auto")
    expected = [i for text in mixed for i in [1, *library_ids(path, text), 2]]
    assert np.fromfile(tmp_path / "o" / "train.bin", np.uint16).tolist() == expected
    assert result.manifest.counts["special_strings"] >= 60


def test_gigatoken_alone_says_when_it_cannot(tmp_path: Path, texts: list[str]) -> None:
    path = train_sentencepiece(tmp_path / "u.model", texts[:200], "unigram")
    source = write_parquet(tmp_path / "a.parquet", texts[:5])
    with pytest.raises(mill.TokenmillError, match="cannot encode with"):
        mill.prepare(source, tmp_path / "o", tokenizer=str(path), encoder="gigatoken")


def test_workers_and_start_methods_give_the_same_bytes(
    json_file: Path, inputs: list[Path], tmp_path: Path
) -> None:
    results = []
    for number, method in enumerate(("inline", "fork", "spawn", "forkserver")):
        output = tmp_path / method
        run = command(
            "prepare", *inputs, "-o", output, "--tokenizer", json_file, "--val", "0.1",
            "--workers", number, *(["--start-method", method] if number else []),
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        results.append(token_bytes(output))
    assert all(result == results[0] for result in results)


def test_a_tiktoken_file_equals_the_bundled_encoding(texts: list[str], tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", texts)
    outputs = []
    for name in ("cl100k_base", "p50k_base", "gpt2"):
        path = tmp_path / f"my-{name}.tiktoken"
        path.write_bytes(bundled_ranks_file(name))
        for number, options in enumerate(
            (
                {"tokenizer": name},
                {"tokenizer": str(path)},
                {"tokenizer": str(path), "pattern": name},
            )
        ):
            if name == "p50k_base" and number == 2:
                continue  # its special tokens are known with its own pattern only
            output = tmp_path / f"{name}{number}"
            mill.prepare(source, output, val="none", workers=0, **options)
            outputs.append(token_bytes(output))
        assert outputs[-1] == outputs[-2], name
