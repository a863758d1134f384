"""The dataset read back: tokens across files, documents by number."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference

import tokenmill
from tokenmill.dataset.views import Tokens
from tokenmill.errors import UsageError, VerificationError


@pytest.fixture(scope="module")
def sharded(
    inputs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[tokenmill.Dataset, np.ndarray]:
    out = tmp_path_factory.mktemp("sharded") / "o"
    tokenmill.prepare(inputs, out, format="llmc", shard_tokens="7k", workers=0)
    stream = [t for _, _, ids in reference.documents(inputs, "gpt2", "prepend") for t in ids]
    return tokenmill.open_dataset(out), np.array(stream, np.uint16)


@given(st.data())
def test_tokens_slice_like_one_array(
    sharded: tuple[tokenmill.Dataset, np.ndarray], data: st.DataObject
) -> None:
    dataset, stream = sharded
    tokens, expected = dataset["train"].tokens, stream[7000:]
    assert len(tokens) == len(expected)
    edge = st.one_of(st.none(), st.integers(-len(expected) - 9, len(expected) + 9))
    start, stop = data.draw(edge), data.draw(edge)
    step = data.draw(st.sampled_from([None, 1, 2, 7, -1, -3]))
    assert np.array_equal(tokens[start:stop:step], expected[start:stop:step])
    index = data.draw(st.integers(-len(expected), len(expected) - 1))
    assert tokens[index] == expected[index]


def test_documents_are_those_of_the_slow_twin(inputs: list[Path], tmp_path: Path) -> None:
    tokenmill.prepare(inputs, tmp_path / "o", val=0.2, seed=9, workers=0)
    dataset = tokenmill.open_dataset(tmp_path / "o")
    expected: dict[str, list[list[int]]] = {"train": [], "val": []}
    for source, position, ids in reference.documents(inputs, "gpt2", "append"):
        split = "val" if reference.held_out(9, source, position, 0.2) else "train"
        expected[split].append(ids)
    assert sorted(dataset) == ["train", "val"]
    for name, documents in expected.items():
        split = dataset[name]
        assert len(split.documents) == len(documents)
        assert [d.tolist() for d in split.documents] == documents
        assert split.documents[-1].tolist() == documents[-1]
        with pytest.raises(IndexError):
            split.documents[len(documents)]


def test_a_document_cut_by_a_shard_border_is_in_both_splits_in_part(
    sharded: tuple[tokenmill.Dataset, np.ndarray],
) -> None:
    dataset, stream = sharded
    val, train = dataset["val"], dataset["train"]
    assert sum(len(d) for d in val.documents) == 7000
    assert sum(len(d) for d in train.documents) == len(stream) - 7000
    assert np.array_equal(np.concatenate(list(val.documents)), stream[:7000])
    assert np.array_equal(train.documents[0], train.tokens[: len(train.documents[0])])
    assert all(d[0] == 50256 for d in list(train.documents)[1:])


def test_row_runs_lead_from_a_document_to_its_source_and_row(
    inputs: list[Path], tmp_path: Path
) -> None:
    """What `inspect` will read: checked here so that the bytes are right from the start."""
    tokenmill.prepare(inputs, tmp_path / "o", val=0.3, workers=0)
    positions = {
        source: [position for position, _ in reference.rows(path)]
        for source, path in enumerate(inputs)
    }
    for split, held in (("train", False), ("val", True)):
        runs = np.fromfile(tmp_path / "o/index" / f"{split}.runs", "<u8").reshape(-1, 3)
        expected = [
            (source, row)
            for source, places in positions.items()
            for row, position in enumerate(places)
            if reference.held_out(0, source, position, 0.3) == held
        ]
        found = []
        bounds = [*runs[:, 0].tolist(), len(expected)]
        for (_, source, row), start, stop in zip(runs.tolist(), bounds, bounds[1:], strict=False):
            found += [(source, row + i) for i in range(stop - start)]
        assert found == expected


def test_no_dataset_and_a_damaged_manifest_are_errors(
    sharded: tuple[tokenmill.Dataset, np.ndarray], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="not a finished dataset"):
        tokenmill.open_dataset(tmp_path)
    content = (sharded[0].directory / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").write_bytes(content.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(VerificationError, match="damaged"):
        tokenmill.open_dataset(tmp_path)


def test_a_dataset_pickles_as_its_path_whatever_of_it_is_open(
    sharded: tuple[tokenmill.Dataset, np.ndarray],
) -> None:
    dataset, stream = sharded
    split = dataset["train"]
    assert np.array_equal(split.tokens[:], stream[7000:])  # every file is mapped
    for one in (dataset, split, split.tokens, split.documents):
        assert len(pickle.dumps(one)) < 2000
    again = pickle.loads(pickle.dumps(dataset))
    assert list(again) == list(dataset) == ["val", "train"]
    assert again.manifest == dataset.manifest
    split, tokens, documents = pickle.loads(pickle.dumps((split, split.tokens, split.documents)))
    assert np.array_equal(split.tokens[:], stream[7000:])
    assert np.array_equal(tokens[:], stream[7000:])
    assert tokens.dtype == np.uint16
    assert documents[-1].tolist() == dataset["train"].documents[-1].tolist()
    assert documents.source(0) == dataset["train"].documents.source(0)


def test_a_pickled_dataset_keeps_its_format(inputs: list[Path], tmp_path: Path) -> None:
    tokenmill.prepare(inputs[:1], tmp_path / "o", format="nanogpt,parquet", workers=0)
    dataset = tokenmill.open_dataset(tmp_path / "o", format="parquet")
    again = pickle.loads(pickle.dumps(dataset))
    assert again.layout.format == "parquet"
    assert np.array_equal(again["train"].tokens[:], dataset["train"].tokens[:])


def test_a_dataset_is_pickled_with_its_whole_path(
    sharded: tuple[tokenmill.Dataset, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sharded[0].directory
    monkeypatch.chdir(folder.parent)
    content = pickle.dumps(tokenmill.open_dataset(folder.name))
    monkeypatch.chdir("/")
    assert len(pickle.loads(content)) == 2


def test_an_unpickled_dataset_opens_at_its_first_use(
    sharded: tuple[tokenmill.Dataset, np.ndarray], tmp_path: Path
) -> None:
    shutil.copytree(sharded[0].directory, tmp_path / "o")
    content = pickle.dumps(tokenmill.open_dataset(tmp_path / "o")["train"])
    (tmp_path / "o").rename(tmp_path / "away")
    split = pickle.loads(content)
    assert pickle.dumps(split) == content
    with pytest.raises(UsageError, match="no such folder"):
        len(split.tokens)
    (tmp_path / "away").rename(tmp_path / "o")
    assert len(split.tokens) == len(sharded[0]["train"].tokens)


def test_a_dataset_that_was_made_again_is_not_the_one_that_was_pickled(
    inputs: list[Path], tmp_path: Path
) -> None:
    tokenmill.prepare(inputs[:1], tmp_path / "o", workers=0)
    content = pickle.dumps(tokenmill.open_dataset(tmp_path / "o"))
    tokenmill.prepare(inputs[:1], tmp_path / "o", workers=0, overwrite=True)
    assert list(pickle.loads(content)) == ["train"]  # the same bytes, so the same manifest
    tokenmill.prepare(inputs[:2], tmp_path / "o", workers=0, overwrite=True)
    again = pickle.loads(content)
    with pytest.raises(VerificationError, match="not the dataset that was pickled"):
        again["train"]


@pytest.mark.parametrize("format", ["llmc", "parquet", "mds"])
def test_the_number_of_open_files_is_bounded(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Ten thousand shards, and a process may have a thousand open files."""
    monkeypatch.setattr(Tokens, "MAX_OPEN", 5)
    tokenmill.prepare(
        inputs[:1], tmp_path / "o", format=format, shard_tokens=3000, val="none", workers=0
    )
    dataset = tokenmill.open_dataset(tmp_path / "o")
    tokens = dataset["train"].tokens
    assert len(dataset.token_files) > 30
    before = len(os.listdir("/proc/self/fd"))
    found = [int(tokens[at]) for at in range(0, len(tokens), 1000)]
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    assert found == tokens[::1000].tolist()
