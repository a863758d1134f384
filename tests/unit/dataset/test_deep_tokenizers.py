"""Tokenizer files and rows set aside, seen by `inspect`, `plan` and `verify --deep`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inputs import write_jsonl
from support.tokenizer_files import train_sentencepiece, write_json

import tokenmill
from tokenmill.errors import UsageError, VerificationError
from tokenmill.pipeline import make_options
from tokenmill.planning.estimate import make_estimate
from tokenmill.planning.make import make_plan
from tokenmill.tokenizer.bundled import ENCODINGS, bundled_ranks_file
from tokenmill.tokenizer.encoders.decoding import encoding_of, open_decoder
from tokenmill.tokenizer.files import find_encoding


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    ranks = folder / "mine.tiktoken"
    ranks.write_bytes(bundled_ranks_file("cl100k_base"))
    return {
        "json": write_json(folder / "tokenizer.json"),
        "sentencepiece": train_sentencepiece(folder / "tokenizer.model", texts),
        "tiktoken": ranks,
    }


OPTIONS: dict[str, dict[str, str]] = {
    "json": {"bos_token": "<|im_start|>"},
    "sentencepiece": {"bos_token": "auto"},
    "tiktoken": {"pattern": "gpt2", "eot_token": "100300"},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_dataset_of_a_tokenizer_file(
    kind: str, files: dict[str, Path], texts: list[str], tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", texts[:60])
    options = {"tokenizer": str(files[kind]), "val": "docs:7", **OPTIONS[kind]}
    plan = make_plan(source, tmp_path / "o", make_options(options))
    estimate = make_estimate(plan, probe_seconds=60.0)
    tokenmill.prepare(source, tmp_path / "o", workers=0, **options)
    counts = tokenmill.open_dataset(tmp_path / "o").manifest.counts
    assert estimate.tokens == pytest.approx(counts["tokens"], rel=0.05)
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.problems == []
    assert report.complete
    view = tokenmill.inspect_document(tmp_path / "o", document=0)
    assert len(view.specials) == (1 if kind == "tiktoken" else 2)
    assert all(piece.isprintable() for piece in view.pieces)
    if kind == "tiktoken":
        assert view.text == texts[7]
        assert view.pieces[-1] == "<id 100300>"


def test_byte_level_tokens_decode_to_the_text(files: dict[str, Path], texts: list[str]) -> None:
    from tokenmill.tokenizer.encoders.reference import ReferenceEncoder

    encoding = find_encoding(str(files["json"]))
    decoder, reference = open_decoder(encoding), ReferenceEncoder(encoding)
    for text in texts[:40:4]:
        if text.isascii():  # the rules normalize other text
            assert decoder.text(reference.encode_document(text.encode()).tolist()) == text
    ids = reference.encode_document("naïve café\n".encode()).tolist()
    assert decoder.text(ids) == "naïve café\n"


def test_a_tokenizer_file_that_is_gone_or_another(files: dict[str, Path], tmp_path: Path) -> None:
    mine = tmp_path / "t.tiktoken"
    mine.write_bytes(files["tiktoken"].read_bytes())
    source = write_jsonl(tmp_path / "x.jsonl", ["a b", "c"])
    tokenmill.prepare(source, tmp_path / "o", tokenizer=str(mine), workers=0)
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").complete
    mine.write_bytes(bundled_ranks_file("gpt2"))
    with pytest.raises(VerificationError, match="another vocabulary"):
        tokenmill.inspect_document(tmp_path / "o", document=0)
    mine.unlink()
    with pytest.raises(UsageError, match="cannot be found"):
        tokenmill.inspect_document(tmp_path / "o", document=0)
    with pytest.raises(UsageError, match="cannot be found"):
        encoding_of(tokenmill.open_dataset(tmp_path / "o").settings, None)
    assert tokenmill.inspect(tmp_path / "o").counts["documents"] == 2
    assert "gpt2" in ENCODINGS
