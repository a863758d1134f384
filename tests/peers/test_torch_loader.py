"""An opened dataset in a torch DataLoader, whose workers are spawned."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from support.peer_packages import peer

import tokenmill

# Warnings of other people's packages are theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("format", ["llmc", "parquet"])
def test_a_torch_data_loader_reads_every_document_in_spawned_workers(
    inputs: list[Path], tmp_path: Path, format: str
) -> None:
    data = peer("torch.utils.data")
    tokenmill.prepare(inputs[:1], tmp_path / "o", format=format, shard_tokens="30k", workers=0)
    documents = tokenmill.open_dataset(tmp_path / "o")["train"].documents
    expected = [document.tolist() for document in documents]  # maps are open in this process
    loader = data.DataLoader(
        documents, batch_size=None, num_workers=2, multiprocessing_context="spawn"
    )
    assert [document.tolist() for document in loader] == expected


def test_torch_takes_what_a_dataset_returns_without_a_warning(
    inputs: list[Path], tmp_path: Path
) -> None:
    torch = peer("torch")
    tokenmill.prepare(inputs[:1], tmp_path / "o", workers=0)
    split = tokenmill.open_dataset(tmp_path / "o")["train"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of an array that is not writable
        for array in (split.tokens[:8], split.tokens[[1, 5]], split.documents[0]):
            assert torch.from_numpy(array.astype("int64")).tolist() == array.tolist()
            assert torch.from_numpy(array).tolist() == array.tolist()
