"""Every format read by the project that owns it: every token, and every document's border."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import reference
from support.peer_packages import MUST, peer
from support.shard_of import GOLDEN, files_of, shard_of

import tokenmill
from tokenmill.cli.convert import data_path_options
from tokenmill.formats import FORMATS
from tokenmill.formats.datatrove import metric
from tokenmill.pipeline import export_by_source

# Warnings of other people's packages are theirs.
pytestmark = pytest.mark.filterwarnings("ignore")
SHARDS = "60k"


@pytest.fixture(scope="module", params=["gpt2", "o200k_base"])
def tokenizer(request: pytest.FixtureRequest) -> str:
    """Ids of 16 and of 32 bits."""
    return str(request.param)


@pytest.fixture(scope="module")
def documents(inputs: list[Path], tokenizer: str) -> list[list[int]]:
    return [ids for _, _, ids in reference.documents(inputs, tokenizer, "append")]


@pytest.fixture
def prepared(inputs: list[Path], tokenizer: str, tmp_path: Path) -> Any:
    def prepare(format: str, **options: Any) -> Path:
        out = tmp_path / "out"
        tokenmill.prepare(
            inputs, out, format=format, tokenizer=tokenizer, val="docs:9", workers=2, name="x",
            **options,
        )  # fmt: skip
        return out

    return prepare


def test_megatron_reads_every_document(prepared: Any, documents: list[list[int]]) -> None:
    indexed = peer("megatron.core.datasets.indexed_dataset")
    out = prepared("megatron")
    found = []
    for split in ("val", "train"):
        dataset = indexed.IndexedDataset(str(out / f"x_{split}_text_document"))
        assert len(dataset.document_indices) == len(dataset) + 1
        found += [dataset[i].tolist() for i in range(len(dataset))]
    assert found == documents


def test_megatron_opens_the_prefixes_of_single_sources(
    inputs: list[Path], tokenizer: str, tmp_path: Path
) -> None:
    """The options that `export --by-source` prints, as Megatron's blend reads them."""
    indexed = peer("megatron.core.datasets.indexed_dataset")
    utils = peer("megatron.core.datasets.utils")
    tokenmill.prepare(inputs, tmp_path / "d", val="none", tokenizer=tokenizer, workers=0)
    results = export_by_source(tmp_path / "d", tmp_path / "o", format="megatron", workers=0)
    blend = data_path_options(results)["--data-path"].split()
    prefixes, weights = utils.get_blend_from_list(blend)
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    whole = tokenmill.open_dataset(tmp_path / "d")["train"].documents
    found = []
    for prefix in prefixes:
        dataset = indexed.IndexedDataset(prefix)
        found += [dataset[i].tolist() for i in range(len(dataset))]
    assert found == [np.asarray(one).tolist() for one in whole]


def test_megatrons_own_builder_writes_the_same_bytes(
    prepared: Any, documents: list[list[int]], tokenizer: str, tmp_path: Path
) -> None:
    indexed = peer("megatron.core.datasets.indexed_dataset")
    torch = peer("torch")
    out = prepared("megatron")
    dtype = np.uint16 if tokenizer == "gpt2" else np.int32
    assert indexed.DType.optimal_dtype(50257 if tokenizer == "gpt2" else 200019) == dtype
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for ids in documents[9:]:
        builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        ours = (out / f"x_train_text_document{suffix}").read_bytes()
        assert ours == (tmp_path / f"theirs{suffix}").read_bytes()


def test_datatrove_reads_every_token_and_border(
    prepared: Any, documents: list[list[int]], tokenizer: str
) -> None:
    dataset = peer("datatrove.utils.dataset")
    out = prepared("datatrove", shard_tokens=SHARDS)
    length = 64
    for split, expected in (("val", documents[:9]), ("train", documents[9:])):
        stream, starts = [], []
        for path in sorted((out / split).glob("*.ds")):
            one = dataset.DatatroveFileDataset(
                str(path), seq_len=length, token_size=2 if tokenizer == "gpt2" else 4,
                return_positions=True,
            )  # fmt: skip
            whole = np.concatenate([one[i]["input_ids"].numpy() for i in range(len(one))])
            positions = np.concatenate([one[i]["positions"].numpy() for i in range(len(one))])
            stream.append(whole)
            starts.append(np.flatnonzero(positions == 0))
        flat = [t for ids in expected for t in ids]
        at = 0
        borders = set(np.cumsum([0] + [len(ids) for ids in expected]).tolist())
        for path, whole, found in zip(
            sorted((out / split).glob("*.ds")), stream, starts, strict=True
        ):
            assert whole.tolist() == flat[at : at + len(whole)]
            inside = {b - at for b in borders if at <= b < at + len(whole)}
            windows = set(range(0, len(whole), length + 1))
            assert inside <= set(found.tolist()) <= inside | windows
            at += path.stat().st_size // (2 if tokenizer == "gpt2" else 4)
        assert at == len(flat)
    folder = dataset.DatatroveFolderDataset(
        str(out / "train"), seq_len=length, filename_pattern="*.ds",
        token_size=2 if tokenizer == "gpt2" else 4,
    )  # fmt: skip
    assert len(folder) > 100


def test_datatroves_metadata_says_what_humanize_says() -> None:
    humanize = peer("humanize")
    # Without 9999: humanize writes "10.00 k" up to 4.16 and "10.0 k" since. No program reads it.
    for number in (0, 1, 9, 10, 999, 1000, 1001, 12345, 10**6, 10386358700, 10**12 + 7, 10**15):
        assert metric(number) == humanize.metric(number, unit="T")


def test_streaming_reads_every_document_and_checks_every_hash(
    prepared: Any, documents: list[list[int]]
) -> None:
    mds = peer("streaming.base.format.mds.reader")
    streaming = peer("streaming.base.format")
    for compression in ("none", "zstd"):
        out = prepared("mds", shard_tokens=SHARDS, compression=compression, overwrite=True)
        found = []
        for split in ("val", "train"):
            index = json.loads((out / split / "index.json").read_bytes())
            for shard in index["shards"]:
                reader = streaming.reader_from_json(str(out), split, shard)
                assert isinstance(reader, mds.MDSReader)
                _unpack(reader, out / split)
                found += [reader[i]["tokens"].tolist() for i in range(len(reader))]
        assert found == documents


def _unpack(reader: Any, folder: Path) -> None:
    """As a Stream does with a shard that it has at hand: hash, decompress, hash."""
    hashing, compression = peer("streaming.base.hashing"), peer("streaming.base.compression")
    raw, packed = reader.file_pairs[0]
    if packed is not None:
        content = (folder / packed.basename).read_bytes()
        assert hashing.get_hash("xxh3_64", content) == packed.hashes["xxh3_64"]
        (folder / raw.basename).write_bytes(compression.decompress("zstd", content))
    content = (folder / raw.basename).read_bytes()
    assert hashing.get_hash("xxh3_64", content) == raw.hashes["xxh3_64"]
    assert len(content) == raw.bytes


def test_a_streaming_dataset_opens_it(prepared: Any, documents: list[list[int]]) -> None:
    streaming = peer("streaming")
    out = prepared("mds", shard_tokens=SHARDS)
    dataset = streaming.StreamingDataset(
        local=str(out), split="val", batch_size=1, validate_hash="xxh3_64"
    )
    assert [dataset[i]["tokens"].tolist() for i in range(len(dataset))] == documents[:9]


def test_a_packed_dataset_that_streaming_has_read_is_still_whole(
    prepared: Any, documents: list[list[int]]
) -> None:
    """It unpacks shards beside those that are packed."""
    streaming = peer("streaming")
    out = prepared("mds", shard_tokens=SHARDS, compression="zstd")
    dataset = streaming.StreamingDataset(
        local=str(out), split="val", batch_size=1, validate_hash="xxh3_64"
    )
    assert [dataset[i]["tokens"].tolist() for i in range(len(dataset))] == documents[:9]
    assert list((out / "val").glob("*.mds")), "unpacked"
    assert tokenmill.verify(out).problems == []


# Lengths at which the kind of a shape changes, besides.
SIZES = (1, 255, 256, 65535, 65536, 2)


@pytest.mark.parametrize("documents", [GOLDEN, [list(range(n)) for n in SIZES]])
@pytest.mark.parametrize(("dtype", "name"), [("uint16", "gpt2"), ("uint32", "cl100k_base")])
def test_mds_writer_writes_the_same_bytes(
    dtype: str, name: str, documents: list[list[int]], tmp_path: Path
) -> None:
    streaming = peer("streaming")
    with streaming.MDSWriter(
        out=str(tmp_path / "theirs"), columns={"tokens": f"ndarray:{dtype}"}, hashes=["xxh3_64"]
    ) as writer:
        for ids in documents:
            writer.write({"tokens": np.array(ids, dtype)})
    ours = files_of(shard_of("mds", documents, tokenizer=name))
    for name in ("shard.00000.mds", "index.json"):
        assert ours[f"train/{name}"] == (tmp_path / "theirs" / name).read_bytes()


READ_LITDATA = """
import json, sys, warnings
warnings.simplefilter("ignore")
from litdata import StreamingDataset, TokensLoader
folder, block = sys.argv[1], int(sys.argv[2])
dataset = StreamingDataset(folder, item_loader=TokensLoader(block_size=block), shuffle=False)
print(json.dumps([dataset[i].tolist() for i in range(len(dataset))]))
"""


def test_litdata_reads_every_token(
    prepared: Any, documents: list[list[int]], tmp_path: Path
) -> None:
    peer("litdata")
    out = prepared("litdata", shard_tokens=SHARDS)
    block = 128
    for split, expected in (("val", documents[:9]), ("train", documents[9:])):
        done = subprocess.run(
            [sys.executable, "-c", READ_LITDATA, str(out / split), str(block)],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        blocks = json.loads(done.stdout.splitlines()[-1])
        flat = [t for ids in expected for t in ids]
        manifest = tokenmill.open_dataset(out).manifest
        read, at = [], 0
        for file in (f for f in manifest.files if f.kind == "tokens" and f.split == split):
            whole = file.tokens // block * block  # what is left in a chunk is never read
            read += [flat[i : i + block] for i in range(at, at + whole, block)]
            at += file.tokens
        assert at == len(flat)
        assert blocks == read


def test_litdata_items_are_documents(prepared: Any, documents: list[list[int]]) -> None:
    """The offsets, which TokensLoader skips, as litdata's own PyTreeLoader uses them."""
    peer("litdata")
    out = prepared("litdata", shard_tokens=SHARDS)
    found = []
    dtype = tokenmill.open_dataset(out)["train"].tokens.dtype
    for split in ("val", "train"):
        for number in range(len(list((out / split).glob("chunk-*.bin")))):
            content = (out / split / f"chunk-0-{number}.bin").read_bytes()
            count = int.from_bytes(content[:4], "little")
            offsets = np.frombuffer(content, "<u4", count + 1, 4)
            pairs = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
            found += [np.frombuffer(content[a:b], dtype).tolist() for a, b in pairs]
    assert found == documents


def test_datasets_opens_the_folder(prepared: Any, documents: list[list[int]]) -> None:
    datasets = peer("datasets")
    out = prepared("hf", shard_tokens=SHARDS)
    opened = datasets.load_from_disk(str(out))
    rows = [*opened["val"]["ids"], *opened["train"]["ids"]]
    assert rows == documents
    assert [*opened["val"]["len"], *opened["train"]["len"]] == [len(ids) for ids in documents]


def test_datasets_loads_the_parquet_files(
    prepared: Any, documents: list[list[int]], tmp_path: Path
) -> None:
    datasets = peer("datasets")
    out = prepared("parquet", shard_tokens=SHARDS)
    files = {split: str(out / f"{split}-*.parquet") for split in ("val", "train")}
    opened = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert [*opened["val"]["ids"], *opened["train"]["ids"]] == documents


def test_nanogpt_llmc_and_build_nanogpt_as_their_python_loaders_read_them(
    inputs: list[Path], tmp_path: Path
) -> None:
    """numpy alone: so they are read in `make test` too."""
    after = [ids for _, _, ids in reference.documents(inputs, "gpt2", "append")]
    before = [ids for _, _, ids in reference.documents(inputs, "gpt2", "prepend")]
    options: dict[str, Any] = {"workers": 2, "name": "x"}
    tokenmill.prepare(inputs, tmp_path / "n", format="nanogpt", val="docs:9", **options)
    flat = [t for ids in after[9:] for t in ids]
    assert np.memmap(tmp_path / "n/train.bin", np.uint16, mode="r").tolist() == flat
    tokenmill.prepare(
        inputs, tmp_path / "b", format="build-nanogpt", shard_tokens=SHARDS, **options
    )
    shards = sorted(s for s in os.listdir(tmp_path / "b") if "train" in s)
    loaded = [np.load(tmp_path / "b" / s).astype(np.int32) for s in shards]
    held = np.load(tmp_path / "b/x_val_000000.npy")
    assert np.concatenate([held, *loaded]).tolist() == [t for ids in before for t in ids]


@pytest.mark.skipif(not MUST, reason="the others say it themselves")
@pytest.mark.parametrize(("size", "name"), [(2, "gpt2"), (4, "cl100k_base")])
def test_datatroves_own_writer_writes_the_same_bytes(size: int, name: str, tmp_path: Path) -> None:
    tokens, io = peer("datatrove.pipeline.tokens.tokenizer"), peer("datatrove.io")
    theirs = tokens.TokenizedFile(
        io.get_datafolder(str(tmp_path)), "000_x.ds", tokenizer_name_or_path=name,
        token_size=size, save_final_metadata=True,
    )  # fmt: skip
    for ids in GOLDEN:
        theirs.write(ids, None)
    theirs.close()
    ours = files_of(shard_of("datatrove", tokenizer=name))
    for suffix in ("", ".index", ".metadata"):
        path = f"000_x.ds{suffix}"
        assert ours[f"train/{path}"] == (tmp_path / path).read_bytes()


@pytest.mark.parametrize(("dtype", "name"), [("uint16", "gpt2"), ("uint32", "cl100k_base")])
def test_litdatas_own_writer_writes_the_same_chunk(dtype: str, name: str, tmp_path: Path) -> None:
    peer("litdata")
    loader, cache = peer("litdata.streaming.item_loader"), peer("litdata.streaming.cache")
    theirs = cache.Cache(str(tmp_path), chunk_bytes=1 << 26, item_loader=loader.TokensLoader())
    for number, ids in enumerate(GOLDEN):
        theirs[number] = np.array(ids, dtype)
    theirs.done()
    theirs.merge()
    ours = files_of(shard_of("litdata", tokenizer=name))
    assert ours["train/chunk-0-0.bin"] == (tmp_path / "chunk-0-0.bin").read_bytes()
    index, wrote = (
        json.loads(content)
        for content in (ours["train/index.json"], (tmp_path / "index.json").read_bytes())
    )
    assert index["chunks"] == wrote["chunks"]
    assert index["config"].items() <= wrote["config"].items()


@pytest.mark.parametrize("format", FORMATS)
def test_the_lines_that_a_run_prints_open_what_it_wrote(
    format: str, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {
        "megatron": "megatron.core.datasets.indexed_dataset", "datatrove": "datatrove",
        "mds": "streaming", "litdata": "litdata", "hf": "datasets",
    }  # fmt: skip
    peer(packages.get(format, "numpy"))
    monkeypatch.setenv("HOME", str(tmp_path))  # where litdata keeps what it reads
    options = {"shard_tokens": SHARDS} if FORMATS[format].sharded else {}
    result = tokenmill.prepare(
        inputs, tmp_path / "o", format=format, name="x", val="docs:9", workers=0, **options
    )
    first = next(f for f in result.manifest.files if f.kind == "tokens" and f.split == "train")
    settings = result.manifest.settings
    lines = FORMATS[format].load_lines(settings, settings.first, str(tmp_path / "o"), first.path)
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    opened = {"tokens", "documents", "dataset", "blocks"} & names.keys()
    assert len(opened) == 1
    assert len(names[opened.pop()]) > 9


def test_nothing_was_skipped_for_want_of_a_package() -> None:
    for name in ("datatrove", "litdata", "streaming", "megatron.core", "datasets", "humanize"):
        peer(name)
