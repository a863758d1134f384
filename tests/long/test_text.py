"""Text files: documents as `str.split` gives them, and cuts that no token notices."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from support import reference
from support.commands import dataset_bytes, token_bytes
from support.inputs import SHARED, write_jsonl, write_parquet
from support.text import COMPRESS, cut_encoders, novel, small_ranges  # noqa: F401  # noqa: F401
from support.tokenizer_files import ADDED, write_json

import tokenmill as mill
from tokenmill.errors import BadRowError
from tokenmill.tokenizer.encoders.cuts import PLACES


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared corpus is not here")
def test_real_text_may_be_cut_at_every_place(
    cut_encoders: dict[str, Callable[[str], list[int]]],
) -> None:
    cuts = 0
    for path in sorted((SHARED / "corpus").glob("*.parquet")):
        texts = pyarrow.parquet.read_table(path, columns=["text"]).column(0).to_pylist()
        for text in texts[:: len(texts) // 3]:
            data = text[:3000].encode()
            places = [match.end() for match in PLACES.finditer(data)]
            for name, encode in cut_encoders.items():
                whole = encode(data.decode())
                for cut in places[:: max(1, len(places) // 4)]:
                    pieces = encode(data[:cut].decode()) + encode(data[cut:].decode())
                    assert pieces == whole, (name, path.name, cut)
                    cuts += 1
    assert cuts > 500


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "o200k_base", "json"])
@pytest.mark.usefixtures("small_ranges")
def test_one_giant_document_has_the_ids_of_the_whole(
    texts: list[str], tmp_path: Path, tokenizer: str
) -> None:
    text = "\ufeff" + novel(texts, 4_000_000) + "\n\n"
    path = tmp_path / "novel.txt"
    path.write_text(text, newline="")
    options: dict[str, object] = {"tokenizer": tokenizer, "start_method": "fork", "val": "none"}
    if tokenizer == "json":
        options["tokenizer"] = str(write_json(tmp_path / "tokenizer.json", "deepseek"))
    result = mill.prepare(path, tmp_path / "out", workers=2, **options)
    assert result.manifest.counts["rows"] == result.manifest.counts["documents"] == 1
    assert result.run["units_encoded"] > 1
    data = next(iter(mill.open_dataset(tmp_path / "out").values()))
    if tokenizer == "json":
        from tokenizers import Tokenizer

        library = Tokenizer.from_file(str(options["tokenizer"]))
        library.encode_special_tokens = True
        expected = [*library.encode(text, add_special_tokens=False).ids, ADDED[0]["id"]]
    else:
        codec = reference.encoding(tokenizer)
        expected = [*codec.encode_ordinary(text), codec.eot_token]
    assert len(data.documents) == 1
    assert np.array_equal(data.documents[0], expected)
    inline = mill.prepare(path, tmp_path / "inline", workers=0, **options)
    assert dataset_bytes(tmp_path / "inline") == dataset_bytes(tmp_path / "out")
    assert inline.manifest.fingerprint == result.manifest.fingerprint


def test_a_giant_file_of_the_real_size(texts: list[str], tmp_path: Path) -> None:
    """Two segments and a bit, in real processes; the same text in one piece as JSON."""
    text = novel(texts, 40_000_000)
    (tmp_path / "a.txt").write_text(text, newline="")
    write_jsonl(tmp_path / "a.jsonl", [text])
    result = mill.prepare(tmp_path / "a.txt", tmp_path / "t", val="none")
    assert result.run["units_encoded"] >= 3
    mill.prepare(tmp_path / "a.jsonl", tmp_path / "j", val="none", encoder_check=False)
    assert token_bytes(tmp_path / "t") == token_bytes(tmp_path / "j")


@pytest.mark.usefixtures("small_ranges")
def test_giant_and_small_documents_side_by_side(texts: list[str], tmp_path: Path) -> None:
    """Every val rule and cut, by workers and inline, plain and compressed, against the twin."""
    giant = novel(texts, 2_000_000).replace("@@", "")
    rows = ["a b", giant, "", "middle words", giant[:500_000], "end"]
    content = "@@".join(rows).encode()
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content, 1))
    jsonl = write_jsonl(tmp_path / "a.jsonl", rows)
    for number, options in enumerate(
        (
            {"val": "docs:2"},
            {"val": "tokens:1000"},
            {"format": "llmc", "shard_tokens": 100_000, "cut": "document", "name": "x"},
            {"format": "llmc", "shard_tokens": 70_000, "name": "x"},
            {"val": "0.5", "seed": 3, "eot": "prepend"},
        )
    ):
        outputs = []
        for name, path, workers in (("a", plain, 2), ("b", plain, 0), ("c", packed, 1)):
            output = tmp_path / f"{number}{name}"
            options["start_method"] = "fork"
            mill.prepare(path, output, text_separator="@@", workers=workers, **options)
            outputs.append(token_bytes(output))
            assert mill.verify(output).ok
        assert outputs[0] == outputs[1] == outputs[2]
        if "0.5" not in options.values():  # positions of lines differ from those in a text
            mill.prepare(jsonl, tmp_path / f"{number}j", workers=2, **options)
            assert outputs[0] == token_bytes(tmp_path / f"{number}j")
        dataset = mill.open_dataset(tmp_path / f"{number}a")
        assert sum(len(split.documents) for split in dataset.values()) >= len(rows)


def test_a_long_row_of_any_input_is_encoded_in_pieces(texts: list[str], tmp_path: Path) -> None:
    """Several units from one row: memory for a piece, not for all its ids."""
    long = novel(texts, 20_000_000)
    rows = ["a", "b", long, "c", novel(texts[5:], 9_000_000), "d"]
    inputs = [
        write_parquet(tmp_path / "a.parquet", rows),
        write_jsonl(tmp_path / "b.jsonl", rows),
        write_jsonl(tmp_path / "c.jsonl.gz", rows[:4]),
    ]
    whole = mill.prepare(inputs, tmp_path / "o", val="docs:2", workers=2)
    assert whole.run["units_encoded"] > 5
    codec = reference.encoding("gpt2")
    ids = {row: [*codec.encode_ordinary(row), 50256] for row in rows}
    expected = [ids[row] for path in (rows, rows, rows[:4]) for row in path]
    dataset = mill.open_dataset(tmp_path / "o")
    found = [*dataset["val"].documents, *dataset["train"].documents]
    assert [document.tolist() for document in found] == expected
    assert dataset["train"].documents.source(0) == ("a.parquet", 2)
    assert dataset["train"].documents.source(4) == ("b.jsonl", 0)
    report = mill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    assert report.complete


@pytest.mark.usefixtures("small_ranges")
def test_a_giant_bad_document_is_set_aside_whole(texts: list[str], tmp_path: Path) -> None:
    giant = novel(texts, 4_000_000).encode()
    giant = giant[:3_000_000].decode(errors="ignore").encode() + b"\xff" + giant[3_000_000:]
    content = b"@@".join([b"first", giant, b"last"])
    options = {"text_separator": "@@", "val": "none", "start_method": "fork"}
    for suffix in ("", ".gz"):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(COMPRESS[suffix](content) if not suffix else gzip.compress(content, 1))
        at = giant.index(b"\xff")
        with pytest.raises(BadRowError, match=rf"document 1: not valid UTF-8 at byte {at} "):
            mill.prepare(path, tmp_path / f"o{suffix}", **options)
        result = mill.prepare(path, tmp_path / f"o{suffix}", on_bad_row="quarantine", **options)
        assert result.manifest.counts["quarantined"] == 1
        tokens = np.fromfile(tmp_path / f"o{suffix}" / "train.bin", np.uint16)
        assert reference.encoding("gpt2").decode(tokens.tolist()) == (
            "first<|endoftext|>last<|endoftext|>"
        )
        line = json.loads((tmp_path / f"o{suffix}" / "quarantine.jsonl").read_text())
        assert line["row"] == 1
        assert line["length"] == len(giant)
        assert line["sha256"] == hashlib.sha256(giant).hexdigest()
        assert base64.b64decode(line["bytes"]) == giant[: 1 << 20]
