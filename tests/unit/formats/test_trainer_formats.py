"""Every format: its golden bytes, the tokens and documents it holds, what it refuses."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from support import reference
from support.cases import quick
from support.inputs import write_parquet
from support.shard_of import GOLDEN, files_of, settings_for, shard_of
from support.trainer_formats import options_for

import tokenmill
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats import FORMATS
from tokenmill.formats.datatrove import metric


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("format", "options", "file", "size", "sum"),
    [
        ("nanogpt", {}, "train.bin", 18, "9622c418"),
        ("llmc", {}, "x_train_000001.bin", 1042, "47a227fad1ec4245"),
        ("modded", {}, "x_train_000001.bin", 1042, "47a227fad1ec4245"),
        ("megatron", {}, "x_train_text_document.bin", 18, "9622c418"),
        ("megatron", {}, "x_train_text_document.idx", 102, "a029b2e87ccf2a8019d34d340a9c1285"),
        ("megatron", {"dtype": "uint32"}, "x_train_text_document.bin", 36, "b8aa8041"),
        ("megatron", {"dtype": "uint32"}, "x_train_text_document.idx", 102, "354b591deaf859c9"),
        ("datatrove", {}, "train/000_x.ds", 18, "9622c418"),
        ("datatrove", {}, "train/000_x.ds.index", 24, "0fe60f71"),
        ("olmo", {}, "train/part-0-00000.npy", 18, "9622c418"),
        ("litdata", {}, "train/chunk-0-0.bin", 38, "66461e11"),
        # made with MDSWriter of streaming 0.13.0, hashes=["xxh3_64"]
        ("mds", {}, "train/shard.00000.mds", 247, "2f7a867b2eb7e3c3b8e6a4efec891249"),
        ("mds", {}, "train/index.json", 353, "862f19266611978f07aeda13c6a682ad"),
    ],
)
def test_the_golden_files_of_every_format(
    format: str, options: dict[str, Any], file: str, size: int, sum: str
) -> None:
    """Three documents; the sums were made with the trainers' own code."""
    content = files_of(shard_of(format, **options))[file]
    assert len(content) == size
    assert sha(content).startswith(sum)


def test_build_nanogpt_files_are_those_of_np_save() -> None:
    for count in (0, 1, 9):
        saved = io.BytesIO()
        tokens = np.zeros(count, "<u2")
        np.save(saved, tokens)
        made = files_of(shard_of("build-nanogpt", [tokens.tolist()]))["x_train_000001.npy"]
        assert made == saved.getvalue()
    wide = files_of(shard_of("build-nanogpt", dtype="uint32"))["x_train_000001.npy"]
    assert np.load(io.BytesIO(wide)).dtype == np.uint32


def test_flat_files_are_tokens_and_offsets() -> None:
    files = files_of(shard_of("flat"))
    tokens = np.frombuffer(files["train_tokens.bin"], np.uint32)
    offsets = np.load(io.BytesIO(files["train_offsets.npy"]))
    assert offsets.dtype == np.int64
    assert [tokens[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [*GOLDEN]


def test_datatrove_metadata_is_what_its_merger_reads() -> None:
    files = files_of(shard_of("datatrove"))
    assert files["train/000_x.ds.metadata"] == b"gpt2|2\n9\n9.00 T"
    assert files["train/x.ds.metadata"] == b"gpt2|2\n9\n9.00 T"
    # humanize 4.16: metric(n, unit="T")
    told = {0: "0.00 T", 999: "999 T", 1000: "1.00 kT", 12345: "12.3 kT", 10**9: "1.00 GT"}
    assert {number: metric(number) for number in told} == told


def test_olmo_rows_are_dolmas_and_gzip_bears_no_name_and_no_time() -> None:
    packed = files_of(shard_of("olmo"))["train/part-0-00000.csv.gz"]
    assert gzip.decompress(packed) == (
        b"0,3,0,/data/a.jsonl.gz,1\r\n3,5,1,/data/a.jsonl.gz,2\r\n5,9,2,/data/a.jsonl.gz,3\r\n"
    )
    flags, mtime = packed[3], packed[4:8]
    assert (flags, mtime) == (0, bytes(4))


def test_litdata_and_hf_hold_no_time_and_no_random_id() -> None:
    assert json.loads(files_of(shard_of("litdata"))["train/index.json"])["updated_at"] == "0.0"
    one, two = files_of(shard_of("hf")), files_of(shard_of("hf"))
    assert one == two
    assert len(json.loads(one["train/state.json"])["_fingerprint"]) == 16


@pytest.fixture(scope="module")
def documents(inputs: list[Path]) -> list[list[int]]:
    return [ids for _, _, ids in reference.documents(inputs, "gpt2", "none")]


def framed(ids: list[int], eot: str) -> list[int]:
    return [50256, *ids] if eot == "prepend" else [*ids, 50256]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_holds_every_document_and_its_borders(
    format: str, inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = tokenmill.prepare(inputs, out, workers=0, **options_for(format, val="docs:7"))
    dataset = tokenmill.open_dataset(out)
    found = [d.tolist() for split in ("val", "train") for d in dataset[split].documents]
    assert found == [framed(ids, FORMATS[format].eot) for ids in documents]
    assert [s.documents for s in result.manifest.splits] == [7, len(documents) - 7]
    assert tokenmill.verify(out).problems == []
    deep = tokenmill.verify_deep(out, sample="200")
    assert deep.ok, deep.problems


@pytest.mark.parametrize("format", quick(FORMATS, "llmc", "hf", "megatron", "olmo"))
def test_verify_finds_a_changed_bit_and_a_stray_file_in_every_format(
    format: str, inputs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = tokenmill.prepare(inputs[:2], out, workers=0, **options_for(format, val=0.1))
    for entry in result.manifest.files:
        path = out / entry.path
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert len(tokenmill.verify(out).problems) == 1, entry.path
        path.write_bytes(content)
    token_file = next(f.path for f in result.manifest.files if f.kind == "tokens")
    stray = token_file.replace("00000", "00077").replace("0-0.", "0-77.").replace("000_", "077_")
    if stray != token_file:
        (out / stray).write_bytes(b"stray")
        assert [p.split(":")[0] for p in tokenmill.verify(out).problems] == [stray]


def test_megatron_is_read_by_its_index(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    tokenmill.prepare(inputs, tmp_path / "o", format="megatron", name="web", workers=0)
    index = (tmp_path / "o/web_train_text_document.idx").read_bytes()
    tokens = np.fromfile(tmp_path / "o/web_train_text_document.bin", np.uint16)
    version, code, count, starts = struct.unpack("<QBQQ", index[9:34])
    assert (index[:9], version, code) == (b"MMIDIDX\x00\x00", 1, 8)
    assert (count, starts) == (len(documents), len(documents) + 1)
    lengths = np.frombuffer(index, "<i4", count, 34)
    pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    found = [tokens[p // 2 : p // 2 + n].tolist() for p, n in zip(pointers, lengths, strict=True)]
    assert found == [framed(ids, "append") for ids in documents]
    assert np.array_equal(np.frombuffer(index, "<i8", -1, 34 + 12 * count), np.arange(count + 1))


def test_megatron_takes_int32_from_65500_ids_on() -> None:
    fmt = FORMATS["megatron"]
    assert [fmt.dtype(n) for n in (65_499, 65_500, 65_536)] == ["uint16", "uint32", "uint32"]
    index = files_of(shard_of("megatron", tokenizer="o200k_base"))["x_train_text_document.idx"]
    assert index[17] == 4


def test_olmo_is_read_by_its_csv(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0, **options_for("olmo", val="none"))
    found = []
    for part in sorted(out.glob("train/*.npy")):
        tokens = np.memmap(part, np.uint16, mode="r")
        with gzip.open(part.with_suffix(".csv.gz"), "rt", newline="") as file:
            rows = list(csv.reader(file))
        found += [(src, int(loc), tokens[int(a) : int(b)].tolist()) for a, b, _, src, loc in rows]
        assert int(rows[-1][1]) == len(tokens)
    assert len(list(out.glob("train/*.npy"))) > 3
    expected = [
        (inputs[source].name, position + 1, [*ids, 50256])
        for source, position, ids in reference.documents(inputs, "gpt2", "none")
    ]
    assert [ids for _, _, ids in found] == [ids for _, _, ids in expected]
    rows_of_parquet = [(s, n) for s, n, _ in found if s.endswith(".parquet")]
    assert rows_of_parquet == [(s, n) for s, n, _ in expected if s.endswith(".parquet")]


def test_datatrove_is_read_by_its_index(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0, **options_for("datatrove", val="none"))
    found = []
    for part in sorted(out.glob("train/*.ds")):
        tokens = np.fromfile(part, "<u2")
        ends = np.fromfile(f"{part}.index", "<u8").astype(int)
        assert ends[-1] == len(tokens)
        found += [p.tolist() for p in np.split(tokens, ends)[:-1]]
    assert found == [framed(ids, "append") for ids in documents]


def test_parquet_rows_are_documents(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0, **options_for("parquet", val="none"))
    tables = [pyarrow.parquet.read_table(p) for p in sorted(out.glob("train-*.parquet"))]
    assert len(tables) > 3
    found = [ids for table in tables for ids in table.column("ids").to_pylist()]
    assert found == [framed(ids, "append") for ids in documents]


def test_hf_is_opened_by_datasets(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    import datasets

    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0, **options_for("hf", val="docs:5"))
    opened = datasets.load_from_disk(out)
    assert list(opened) == ["val", "train"]
    rows = [*opened["val"]["ids"], *opened["train"]["ids"]]
    assert rows == [framed(ids, "append") for ids in documents]
    assert list(opened["train"]["len"]) == [len(ids) for ids in rows[5:]]
    assert opened["train"].features["ids"].feature.dtype == "uint16"


def test_modded_shards_begin_with_documents_and_are_two_or_more(
    inputs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0, **options_for("modded"))
    for path in out.glob("*.bin"):
        assert np.fromfile(path, "<u2", 1, offset=1024)[0] == 50256
    with pytest.raises(TokenmillError, match="needs 2 train shards") as error:
        tokenmill.prepare(inputs[0], tmp_path / "one", format="modded", val="none", workers=0)
    assert "shard_tokens" in error.value.hint
    assert not list((tmp_path / "one").glob("*.bin"))
    with pytest.raises(TokenmillError, match="needs 2 train shards or more; there is none"):
        tokenmill.prepare(inputs[0], tmp_path / "none", format="modded", workers=0)
    assert not list((tmp_path / "none").glob("*.bin"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "modded", "tokenizer": "cl100k_base"}, "finds documents by the 50256"),
        ({"format": "modded", "eot": "append"}, "finds documents by the 50256"),
        ({"format": "modded", "cut": "exact"}, "none can be cut in two"),
        ({"format": "modded", "dtype": "uint32"}, "reads only uint16"),
        ({"format": "megatron", "shard_tokens": "1M"}, "one file per split"),
        ({"format": "megatron", "cut": "exact"}, "none can be cut in two"),
        ({"format": "mds", "cut": "exact"}, "none can be cut in two"),
        ({"format": "mds", "eot": "none"}, "a document must have a token"),
        ({"format": "llmc", "compression": "zstd"}, "files cannot be compressed"),
        ({"format": "mds", "compression": "lzma"}, "must be one of"),
        ({"format": "datatrove", "name": "a/b"}, "cannot begin a file name"),
        ({"format": "hf", "val": "tokens"}, "not a validation rule"),
        ({"format": "flat", "val": "shard"}, "has no shards"),
        ({"format": "nope"}, "unknown format 'nope'"),
        ({"format": "build-nanogpt", "name": "my_trainset"}, "whose name holds 'train'"),
        ({"format": "build-nanogpt", "name": "medieval"}, "whose name holds 'val'"),
        (
            {"format": "llmc", "shard_tokens": 1_073_741_000, "last_shard": "merge"},
            "with a last shard merged into one",
        ),
    ],
)
def test_what_a_trainer_could_not_read_is_refused_when_planning(
    options: dict[str, Any], message: str, inputs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        tokenmill.prepare(inputs[0], tmp_path / "o", **{"workers": 0, **options})
    assert message in error.value.message
    assert not (tmp_path / "o").exists()


def test_files_with_uint32_offsets_are_split_before_their_limit(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if 4 GiB were 100 kB: shards by bytes where shards by tokens would be larger."""
    import msgspec

    from tokenmill.tokens import reframe, shards

    monkeypatch.setattr(shards, "BLOCK_DOCUMENTS", 7)

    monkeypatch.setattr(reframe, "BLOCK_DOCUMENTS", 7)
    monkeypatch.setattr(shards, "BLOCK_TOKENS", 1000)
    monkeypatch.setattr(reframe, "BLOCK_TOKENS", 1000)
    for format in ("mds", "litdata"):
        small = msgspec.structs.replace(FORMATS[format], max_bytes=100_000)
        monkeypatch.setitem(FORMATS, format, small)
        out = tmp_path / format
        result = tokenmill.prepare(inputs, out, format=format, val="none", workers=0)
        sizes = [f.size for f in result.manifest.files if f.kind == "tokens"]
        assert len(sizes) > 10
        assert max(sizes) < 100_000 + 4096
        found = [d.tolist() for d in tokenmill.open_dataset(out)["train"].documents]
        assert found == [framed(ids, "append") for ids in documents]


def test_a_document_too_long_for_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    path = write_parquet(tmp_path / "x.parquet", ["a b", "word " * 9000, "c"])
    for format, limit in (("mds", "max_bytes"), ("hf", "max_document_tokens")):
        small = msgspec.structs.replace(FORMATS[format], **{limit: 5000})
        monkeypatch.setitem(FORMATS, format, small)
        with pytest.raises(UsageError, match=r"x\.parquet, row 1: a document of 9,00\d tokens"):
            tokenmill.prepare(path, tmp_path / format, format=format, workers=0)


def test_a_shard_that_a_document_makes_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if llm.c read at most 5000 tokens in a file: cut at documents, one is longer."""
    import msgspec

    path = write_parquet(tmp_path / "x.parquet", ["a b", "word " * 9000, "c"])
    small = msgspec.structs.replace(FORMATS["llmc"], max_shard_tokens=lambda settings: 5000)
    monkeypatch.setitem(FORMATS, "llmc", small)
    options: dict[str, Any] = {"format": "llmc", "val": "none", "workers": 0, "shard_tokens": 4000}
    with pytest.raises(TokenmillError, match=r"llmc reads at most 5000 in one file") as error:
        tokenmill.prepare(path, tmp_path / "o", cut="document", **options)
    assert "cut='exact'" in error.value.hint
    assert not list((tmp_path / "o").glob("*.bin"))
    tokenmill.prepare(path, tmp_path / "o", cut="exact", overwrite=True, **options)


def test_more_documents_than_megatron_counts_are_refused(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    assert FORMATS["megatron"].max_documents == 2**31 - 2
    small = msgspec.structs.replace(FORMATS["megatron"], max_documents=50)
    monkeypatch.setitem(FORMATS, "megatron", small)
    with pytest.raises(TokenmillError, match="counts at most 50"):
        tokenmill.prepare(inputs[0], tmp_path / "o", format="megatron", workers=0)


def test_mds_packed_with_zstd_is_read_back(inputs: list[Path], tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    tokenmill.prepare(inputs, plain, workers=0, **options_for("mds", val="none"))
    tokenmill.prepare(
        inputs, packed, workers=0, **options_for("mds", val="none", compression="zstd")
    )
    a, b = (tokenmill.open_dataset(p)["train"].tokens[:] for p in (plain, packed))
    assert np.array_equal(a, b)
    index = json.loads((packed / "train/index.json").read_bytes())
    shard = index["shards"][0]
    file = packed / "train" / shard["zip_data"]["basename"]
    assert file.stat().st_size == shard["zip_data"]["bytes"] < shard["raw_data"]["bytes"]


def test_what_streaming_unpacked_beside_a_shard_is_no_fault_unless_it_differs(
    inputs: list[Path], tmp_path: Path
) -> None:
    """It reads an unpacked shard without comparing it: a stale one would be trained on."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for out, how in ((plain, "none"), (packed, "zstd")):
        options = options_for("mds", val="none", compression=how)
        tokenmill.prepare(inputs[:1], out, workers=0, **options)
    name = "train/shard.00000.mds"
    content = np.fromfile(packed / f"{name}.zstd", np.uint8)
    unpacked = pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd").read()
    (packed / name).write_bytes(unpacked)
    assert tokenmill.verify(packed).problems == []
    (packed / name).write_bytes((plain / name).read_bytes())
    assert [p.partition(":")[0] for p in tokenmill.verify(packed).problems] == [name]
    (packed / name).unlink()
    (packed / "train/shard.00099.mds").write_bytes(unpacked)
    assert len(tokenmill.verify(packed).problems) == 1


def test_settings_of_a_format_are_its_trainers_habits() -> None:
    told = {name: (fmt.eot, fmt.cut) for name, fmt in FORMATS.items()}
    before = {"llmc", "modded", "build-nanogpt"}
    assert {name for name, (eot, _) in told.items() if eot == "prepend"} == before
    assert {name for name, (_, cut) in told.items() if cut == "exact"} == {
        "nanogpt", "llmc", "build-nanogpt",
    }  # fmt: skip
    assert settings_for("flat").first.dtype == "uint32"
