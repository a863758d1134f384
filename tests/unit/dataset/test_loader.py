"""The dataset read back: tokens across files, documents by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference

import tokenmill
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
    with pytest.raises(UsageError, match="no finished dataset"):
        tokenmill.open_dataset(tmp_path)
    content = (sharded[0].directory / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").write_bytes(content.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(VerificationError, match="damaged"):
        tokenmill.open_dataset(tmp_path)
