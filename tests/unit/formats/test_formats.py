"""Token files byte for byte, and read back the way the trainers read them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.commands import token_bytes
from support.inputs import write_parquet

import tokenmill
from tokenmill.amounts import parse_bytes, parse_count
from tokenmill.errors import UsageError
from tokenmill.formats import get_format
from tokenmill.planning.options import Options, plan_settings
from tokenmill.settings import Val

GOLDEN = np.array([50256, 1, 2, 50256, 3, 50256, 4, 5, 6])


def test_the_golden_files_of_the_formats() -> None:
    """The sums were made with llm.c's own write_datafile."""
    gpt2 = plan_settings(Options(format="llmc"), "out").first
    wide = plan_settings(Options(format="llmc", tokenizer="o200k_base"), "out").first
    llmc = get_format("llmc")
    one = llmc.header(gpt2, 9) + GOLDEN.astype("<u2").tobytes()
    seven = llmc.header(wide, 9) + GOLDEN.astype("<u4").tobytes()
    assert (len(one), len(seven)) == (1042, 1060)
    assert hashlib.sha256(one).hexdigest() == (
        "47a227fad1ec42457ffadbdc07525a5971c08fde4aaf363620d4afe5ecbb7fbf"
    )
    assert hashlib.sha256(seven).hexdigest() == (
        "cf74760121a634bf6f3bd60ea7bbe0a69915b6126dee074f1b0dd981ab97b409"
    )


def llmc_loader(path: Path) -> np.ndarray:
    """As llm.c's train_gpt2.py reads a shard."""
    with open(path, "rb") as f:
        header = np.frombuffer(f.read(256 * 4), dtype=np.int32)
        assert header[0] == 20240520
        assert header[1] == 1
        ntok = header[2]
        tokens = np.frombuffer(f.read(), dtype=np.uint16)
    assert len(tokens) == ntok
    return tokens


@pytest.mark.parametrize("cut", ["exact", "document"])
def test_llmc_shards_hold_the_stream_of_documents(
    cut: str, inputs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "fineweb10B"
    tokenmill.prepare(inputs, out, format="llmc", shard_tokens="50k", cut=cut, workers=0)
    names = sorted(p.name for p in out.glob("*.bin"))
    count = len(names)
    assert names == sorted(
        ["fineweb10B_val_000000.bin"] + [f"fineweb10B_train_{i:06d}.bin" for i in range(1, count)]
    )
    shards = [llmc_loader(out / names[-1])] + [llmc_loader(out / n) for n in names[:-1]]
    stream = [t for _, _, ids in reference.documents(inputs, "gpt2", "prepend") for t in ids]
    assert np.array_equal(np.concatenate(shards), stream)
    if cut == "exact":
        assert {len(shard) for shard in shards[:-1]} == {50_000}
    else:
        assert all(shard[0] == 50256 for shard in shards)
        starts = np.cumsum([0] + [len(s) for s in shards])[:-1]
        assert all(start >= i * 50_000 for i, start in enumerate(starts))


def test_a_document_longer_than_several_shards_leaves_no_hole_in_the_numbers(
    tmp_path: Path,
) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["a b c", "word " * 5000, "d e f", "g"])
    out = tmp_path / "o"
    tokenmill.prepare(
        path, out, format="llmc", cut="document", shard_tokens=100, val="none", workers=0
    )
    assert sorted(p.name for p in out.glob("*.bin")) == [
        "o_train_000001.bin",
        "o_train_000002.bin",
    ]
    tokenmill.prepare(path, tmp_path / "e", format="llmc", shard_tokens=1000, name="x", workers=0)
    assert len(list((tmp_path / "e").glob("x_train_*.bin"))) == 5


def test_nanogpt_files_are_read_as_train_py_reads_them(inputs: list[Path], tmp_path: Path) -> None:
    tokenmill.prepare(inputs, tmp_path, val=0.1, workers=0)
    expected = reference.nanogpt(inputs, fraction=0.1)
    for name in ("train.bin", "val.bin"):
        data = np.memmap(tmp_path / name, dtype=np.uint16, mode="r")
        assert data.tobytes() == expected[name]


def test_a_vocabulary_above_65536_is_uint32_and_says_what_to_change(
    inputs: list[Path], tmp_path: Path
) -> None:
    result = tokenmill.prepare(inputs[0], tmp_path / "o", tokenizer="cl100k_base", workers=0)
    settings = plan_settings(Options(tokenizer="cl100k_base"), "out")
    assert settings.first.dtype == "uint32"
    data = np.fromfile(tmp_path / "o" / "train.bin", np.uint32)
    assert data.max() == 100257
    assert len(data) == next(s for s in result.manifest.splits if s.name == "train").tokens
    nanogpt = get_format("nanogpt")
    lines = "\n".join(nanogpt.load_lines(settings, settings.first, "o", "train.bin"))
    assert "dtype=np.uint32" in lines
    assert "100288" in lines  # vocab_size, a multiple of 64


@pytest.mark.parametrize(
    ("val", "held"),
    [("docs:5", 5), ("docs:100000", None), ("tokens:500", None), ("none", 0)],
)
def test_val_is_the_first_documents_where_asked_for(
    val: str, held: int | None, inputs: list[Path], tmp_path: Path
) -> None:
    result = tokenmill.prepare(inputs, tmp_path, val=val, workers=0)
    documents = [ids for _, _, ids in reference.documents(inputs, "gpt2", "append")]
    if val == "tokens:500":
        starts = np.cumsum([0] + [len(d) for d in documents])
        held = int(np.searchsorted(starts, 500))
    elif held is None:
        held = len(documents)
    expected = {
        "val.bin": np.array([t for d in documents[:held] for t in d], "<u2").tobytes(),
        "train.bin": np.array([t for d in documents[held:] for t in d], "<u2").tobytes(),
    }
    assert token_bytes(tmp_path) == {k: v for k, v in expected.items() if v}
    empty = [name.removesuffix(".bin") for name, data in expected.items() if not data]
    if val != "none":
        assert [w.split()[1] for w in result.warnings if "is empty" in w] == empty
    for split in result.manifest.splits:
        assert split.documents == (held if split.name == "val" else len(documents) - held)


def test_empty_documents_are_lone_separators_or_dropped_and_counted(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["a", "", "b", "", ""])
    kept = tokenmill.prepare(path, tmp_path / "k", val="none", workers=0)
    assert kept.manifest.counts["empty"] == 3
    assert np.fromfile(tmp_path / "k/train.bin", np.uint16).tolist() == [
        64, 50256, 50256, 65, 50256, 50256, 50256,
    ]  # fmt: skip
    dropped = tokenmill.prepare(path, tmp_path / "d", val="none", drop_empty=True, workers=0)
    counts = dropped.manifest.counts
    assert (counts["rows"], counts["documents"], counts["dropped"]) == (5, 2, 3)
    assert np.fromfile(tmp_path / "d/train.bin", np.uint16).tolist() == [64, 50256, 65, 50256]


@pytest.mark.parametrize("val", ["none", "docs:3", "tokens:5", "0.5"])
def test_documents_of_the_splits_add_up_even_if_they_are_empty(val: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["", "a b c", "", "", "d e f g", "", "h", ""])
    result = tokenmill.prepare(path, tmp_path / "o", val=val, eot="none", workers=0)
    assert sum(split.documents for split in result.manifest.splits) == 8
    dataset = tokenmill.open_dataset(tmp_path / "o")
    for split in dataset.values():
        joined = [t for d in split.documents for t in d.tolist()]
        assert joined == split.tokens[:].tolist()


def test_shards_numbered_beyond_a_million_stay_in_order(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", [f"{i} " + "a b " * 300_000 for i in range(4)])
    tokenmill.prepare(
        path, tmp_path / "o", format="llmc", val="none", cut="document", shard_tokens=1, workers=0
    )
    documents = tokenmill.open_dataset(tmp_path / "o")["train"].documents
    assert [int(d[1]) for d in documents] == [15, 16, 17, 18]  # "0", "1", "2", "3"


def test_special_strings_in_documents_are_text_and_counted(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "x.parquet",
        ["<|endoftext|>", "a <|endoftext|>b<|endoftext|>", "<|endof", "text|>"],
    )
    result = tokenmill.prepare(path, tmp_path / "o", val="none", workers=0)
    assert result.manifest.counts["special_strings"] == 3
    tokens = np.fromfile(tmp_path / "o/train.bin", np.uint16)
    assert (tokens == 50256).sum() == 4, "one separator per document and no more"
    assert any(
        "3 strings of special tokens (<|endoftext|>)" in warning for warning in result.warnings
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": "shard"}, "has no shards"),
        ({"cut": "document"}, "takes no cut"),
        ({"shard_tokens": "1M"}, "takes no cut or shard_tokens"),
        ({"format": "llmc", "shard_tokens": "2G"}, "at most 1073741311 tokens"),
        ({"format": "llmc", "shard_tokens": 0}, "at least 1"),
        ({"format": "llmc", "name": "a/b"}, "cannot begin a file name"),
        ({"format": "gguf"}, "unknown format"),
        ({"tokenizer": "gpt5"}, "unknown tokenizer"),
        ({"val": "1.5"}, "not a validation rule"),
        ({"val": "docs:0"}, "at least 1"),
        ({"eot": "both"}, "must be one of"),
        ({"start_method": "magic"}, "must be one of"),
        ({"memory": "10MB"}, "below the minimum of 650MB"),
        ({"memory": "lots"}, "not a number"),
        ({"workers": -1}, "must be 0 or more"),
        ({"colour": "red"}, "has no keyword 'colour'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    options: dict[str, object], message: str, inputs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        tokenmill.prepare(inputs[0], tmp_path / "o", **{"workers": 0, **options})  # type: ignore[arg-type]
    assert message in error.value.message
    assert error.value.exit_code == 2
    assert not (tmp_path / "o").exists()


def test_numbers_are_decimal_and_binary_as_written() -> None:
    assert parse_count("100M") == 100_000_000
    assert parse_count("1.5k") == 1500
    assert parse_count("64KiB") == 65536
    assert parse_bytes("2GiB") == 2 << 30
    assert parse_bytes("1GB") == 10**9
    assert parse_bytes("500 MB") == 5 * 10**8
    assert str(Val.parse("tokens:10M")) == "tokens:10000000"
    for wrong in ("", "x", "1e6", "-5", "1MM"):
        with pytest.raises(UsageError):
            parse_count(wrong)
