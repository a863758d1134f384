"""The fast encoder serves only what is proven; all else has the library's ids too."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import command
from support.encoding import characters_json
from support.inputs import write_parquet
from support.proven import DIGITS, LEVEL
from support.tokenizer_files import (
    ADDED,
    added,
    split,
    vocabulary,
    write_json,
)

import tokenmill as mill
from tokenmill.errors import UsageError
from tokenmill.tokenizer.bundled import PATTERNS
from tokenmill.tokenizer.files import find_encoding


def test_verify_deep_agrees_that_text_is_text(tmp_path: Path) -> None:
    model = json.loads(characters_json(tmp_path / "t.json").read_text())["model"]
    path = characters_json(tmp_path / "t.json", model={**model, "ignore_merges": True})
    source = write_parquet(tmp_path / "a.parquet", ["</s>", "hello", "<s>hello</s>"])
    for encoder in ("auto", "reference"):
        out = tmp_path / encoder
        mill.prepare(source, out, tokenizer=str(path), eot_token="</s>", val="none", workers=0,
                     encoder=encoder)  # fmt: skip
        assert command("verify", out, "--deep").returncode == 0
    one = np.fromfile(tmp_path / "auto" / "train.bin", np.uint16)
    assert one.tolist() == np.fromfile(tmp_path / "reference" / "train.bin", np.uint16).tolist()
    assert one.tolist().count(2) == 3, "one separator after each document, none inside"


def test_ranks_that_are_not_consistent_have_tiktokens_ids_and_no_panic_is_printed(
    tmp_path: Path,
) -> None:
    ranks = {bytes([b]): b for b in range(256)} | {b"abc": 256, b"bc": 257, b"ab": 258, b"cab": 259}
    path = tmp_path / "t.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(t), r) for t, r in ranks.items()))
    source = write_parquet(tmp_path / "a.parquet", ["abcab cabc abc", "ab"])
    done = command(
        "prepare", source, "-o", tmp_path / "o", "--tokenizer", path, "--pattern", "gpt2",
        "--eot-token", "300", "--val", "none",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "panic" not in done.stdout + done.stderr
    assert "tiktoken, not gigatoken: rank 256 cannot be built" in done.stdout + done.stderr
    import tiktoken

    codec = tiktoken.Encoding(
        "t", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens={}
    )
    expected = [i for t in ("abcab cabc abc", "ab") for i in [*codec.encode_ordinary(t), 300]]
    assert np.fromfile(tmp_path / "o" / "train.bin", np.uint16).tolist() == expected


@pytest.mark.parametrize("where", ["vocab", "added", "special"])
def test_an_id_that_is_too_large_is_refused(tmp_path: Path, where: str) -> None:
    vocab, _ = vocabulary()
    huge = (1 << 32) - 1
    tokens = (
        [*ADDED[:1], added("<z>", huge, special=where == "special")] if where != "vocab" else ADDED
    )
    model = json.loads(write_json(tmp_path / "t.json").read_text())["model"]
    if where == "vocab":
        model = {**model, "vocab": {**vocab, "zzzz": huge}}
    path = write_json(tmp_path / "t.json", tokens=tokens, model=model)
    source = write_parquet(tmp_path / "a.parquet", ["x"])
    done = command("prepare", source, "-o", tmp_path / "o", "--tokenizer", path)
    assert done.returncode == 2, done.stderr
    assert "the id 4294967295 is too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def test_brackets_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": ' + "[" * 300_000)
    with pytest.raises(UsageError, match="too many brackets"):
        find_encoding(str(path))
    path.write_text('{"model": ' + "[" * 300_000 + "]" * 300_000 + "}")
    done = command("prepare", path, "-o", tmp_path / "o", "--tokenizer", path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def made_earlier(out: Path) -> None:
    """run.json as version 0.1.0 wrote it: without the encoder's name."""
    path = out / "run.json"
    record = json.loads(path.read_text())
    for key in ("name", "rules", "why"):
        del record["encoder"][key]
    path.write_text(json.dumps(record))


def test_verify_warns_of_an_earlier_version_with_a_tokenizer_that_is_not_proven(
    tmp_path: Path,
) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["hello world", "a  123"])
    digits = {"type": "Sequence", "pretokenizers": [DIGITS, split(PATTERNS["llama3"]),
                                                    {**LEVEL, "use_regex": False}]}  # fmt: skip
    slow = write_json(tmp_path / "slow.json", normalizer=None, pre_tokenizer=digits)
    right = write_json(tmp_path / "right.json", "qwen2")
    cases = {"slow": slow, "right": right, "bundled": "gpt2"}
    for name, tokenizer in cases.items():
        out = tmp_path / name
        mill.prepare(source, out, tokenizer=str(tokenizer), val="none", workers=0)
        assert mill.verify(out).warnings == [], "made by this version"
        made_earlier(out)
    assert mill.verify(tmp_path / "right").warnings == []
    assert mill.verify(tmp_path / "bundled").warnings == []
    done = command("verify", tmp_path / "slow")
    assert done.returncode == 0
    assert (
        "warning: an earlier version encoded this dataset with slow.json: pre-tokenizer Digits"
        in (done.stdout)
    )
    assert "--deep" in done.stdout
    slow.unlink()
    assert "its file is not here" in mill.verify(tmp_path / "slow").warnings[0]
    assert "earlier version" in command("inspect", tmp_path / "slow").stdout


def test_the_encoder_and_why_are_told_before_and_after_and_kept(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["hello world"])
    slow = write_json(tmp_path / "slow.json", normalizer={"type": "Lowercase"})
    told = "tokenizers, not gigatoken: normalizer Lowercase is not proven for the fast encoder"
    plan = command("plan", source, "-o", tmp_path / "o", "--tokenizer", slow)
    assert f"encoder: {told}; about 2 MB/s per core" in plan.stdout + plan.stderr
    done = command("prepare", source, "-o", tmp_path / "o", "--tokenizer", slow, "--val", "none")
    assert f"encoder: {told}; about 2 MB/s per core" in done.stderr
    assert f"encoder: {told}" in done.stdout
    assert (
        "encoder    tokenizers, normalizer Lowercase is not"
        in command("inspect", tmp_path / "o").stdout
    )
    run = json.loads((tmp_path / "o" / "run.json").read_text())
    assert run["encoder"]["name"] == "tokenizers"
    fast = command("plan", source, "-o", tmp_path / "p", "--json")
    assert json.loads(fast.stdout)["encoder"] == {
        "encoder": "gigatoken", "rules": "tiktoken gpt2", "speed": 0,
        "why": "proven for the rule set 'tiktoken gpt2'",
    }  # fmt: skip
