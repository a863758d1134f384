"""Tokens and documents behave as numpy's arrays and Python's lists do; everything has a repr."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.tokenizer_files import write_json

import tokenmill
from tokenmill.dataset import views
from tokenmill.errors import UnknownSplitError, UsageError, VerificationError
from tokenmill.tokenizer.bundled import bundled_ranks, write_ranks


@pytest.fixture(scope="module")
def sharded(inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Dataset:
    out = tmp_path_factory.mktemp("views") / "o"
    tokenmill.prepare(inputs, out, format="llmc", shard_tokens="7k", workers=0)
    return tokenmill.open_dataset(out)


@pytest.fixture(scope="module")
def one_file(inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Dataset:
    out = tmp_path_factory.mktemp("views") / "one"
    tokenmill.prepare(inputs[:1], out, val=0.2, workers=0)
    return tokenmill.open_dataset(out)


def test_asarray_reads_in_blocks_and_keeps_the_dtype(
    sharded: tokenmill.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, as numpy reads a plain sequence, 5M tokens took 57 s and became int64."""
    tokens = sharded["train"].tokens
    expected = tokens[:]

    def one_by_one(*_: object) -> None:
        raise AssertionError("a token was read alone")

    monkeypatch.setattr(views, "_position", one_by_one)
    found = np.asarray(tokens)
    assert found.dtype == tokens.dtype == np.uint16
    assert np.array_equal(found, expected)
    assert tokens.shape == found.shape
    wide = np.asarray(tokens, dtype=np.int64)
    assert wide.dtype == np.int64
    assert np.array_equal(wide, expected)
    assert np.array_equal(np.array(tokens, copy=True), expected)
    assert list(tokens)[:70_000] == expected[:70_000].tolist()
    assert all(type(token) is int for token in list(tokens)[:3])


def test_without_a_copy_the_tokens_of_one_file_are_its_memory_map(
    one_file: tokenmill.Dataset, sharded: tokenmill.Dataset
) -> None:
    tokens = one_file["train"].tokens
    mapped = np.asarray(tokens, copy=False)
    assert not mapped.flags.writeable
    assert np.array_equal(mapped, tokens[:])
    for wrong in (lambda: np.asarray(tokens, np.int64, copy=False),
                  lambda: np.asarray(sharded["train"].tokens, copy=False)):  # fmt: skip
        with pytest.raises(ValueError, match="without a copy"):
            wrong()


@pytest.mark.parametrize("format", ["nanogpt", "llmc", "parquet", "mds", "litdata"])
def test_what_is_returned_is_the_callers_own_so_that_torch_does_not_warn(
    format: str, inputs: list[Path], tmp_path: Path
) -> None:
    tokenmill.prepare(inputs[:1], tmp_path / "o", format=format, val="none", workers=0)
    split = tokenmill.open_dataset(tmp_path / "o")["train"]
    before = split.tokens[:100].tolist()
    returned = (
        split.tokens[:100], split.tokens[100::-1], split.tokens[[5, 1]], np.asarray(split.tokens),
        split.documents[0], *split.documents[0:2], split.tokens[:0],
    )  # fmt: skip
    for array in returned:
        assert array.flags.writeable
        assert array.flags.aligned
        array[:] = 1
    assert split.tokens[:100].tolist() == before, "a change never gets into the dataset"


@given(st.data())
def test_tokens_are_chosen_by_lists_arrays_and_masks_as_in_numpy(
    sharded: tokenmill.Dataset, data: st.DataObject
) -> None:
    tokens = sharded["train"].tokens
    array = np.asarray(tokens)
    places = st.integers(-len(array), len(array) - 1)
    some = data.draw(st.lists(places, max_size=20))
    assert np.array_equal(tokens[some], array[np.array(some, np.int64)])
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=4))
    table = data.draw(arrays.arrays(np.int64, shape, elements=places))
    assert np.array_equal(tokens[table], array[table])
    mask = np.zeros(len(array), bool)
    mask[some] = True
    assert np.array_equal(tokens[mask], array[mask])


def test_indices_that_cannot_be_are_errors_that_say_why(one_file: tokenmill.Dataset) -> None:
    tokens, documents = one_file["train"].tokens, one_file["train"].documents
    with pytest.raises(IndexError, match=f"token {len(tokens)} of {len(tokens)}"):
        tokens[[0, len(tokens)]]
    with pytest.raises(IndexError, match="a mask of 2 values for"):
        tokens[np.array([True, False])]
    with pytest.raises(TypeError, match="whole numbers, not by float64"):
        tokens[[0.5]]
    for wrong in ((1, 2), "text", 1.5, None):
        with pytest.raises(TypeError, match=r"(is|are) chosen by"):
            tokens[wrong]  # type: ignore[index]
    with pytest.raises(IndexError, match="not by a table"):
        documents[np.zeros((2, 2), np.int64)]
    assert tokens[np.int32(3)] == tokens[3] == tokens[[3]][0]


def test_documents_are_chosen_by_slices_lists_and_masks(one_file: tokenmill.Dataset) -> None:
    documents = one_file["train"].documents
    every = [document.tolist() for document in documents]
    assert [d.tolist() for d in documents[1:3]] == every[1:3]
    assert [d.tolist() for d in documents[::-7]] == every[::-7]
    assert [d.tolist() for d in documents[[5, -1]]] == [every[5], every[-1]]
    mask = np.arange(len(every)) < 2
    assert [d.tolist() for d in documents[mask]] == every[:2]
    assert documents[len(every) : len(every) + 9] == []


def test_the_tokenizer_of_a_dataset_decodes_and_encodes_it(
    one_file: tokenmill.Dataset, texts: list[str]
) -> None:
    document = one_file["val"].documents[0]
    tok = one_file.tokenizer
    assert isinstance(tok, tokenmill.Tokenizer)
    text = tok.decode(document)
    assert text.removesuffix("<|endoftext|>") in texts
    assert [*tok.encode_ordinary(text.removesuffix("<|endoftext|>")), tok.eot_token] == (
        document.tolist()
    )


def test_the_tokenizer_of_a_file_is_found_again_or_a_sentence_says_what_to_do(
    inputs: list[Path], tmp_path: Path
) -> None:
    file = write_json(tmp_path / "tokenizer.json")
    tokenmill.prepare(
        inputs[:1], tmp_path / "o", tokenizer=str(file), eot_token="<|endoftext|>", workers=0
    )
    dataset = tokenmill.open_dataset(tmp_path / "o")
    document = dataset["train"].documents[0]
    text = dataset.tokenizer.decode(document)
    assert text
    moved = tmp_path / "elsewhere.json"
    file.rename(moved)
    again = pickle.loads(pickle.dumps(tokenmill.open_dataset(tmp_path / "o")))
    with pytest.raises(UsageError, match="cannot be found") as gone:
        _ = again.tokenizer
    assert "open_dataset(" in gone.value.hint
    assert "tokenizer='FILE'" in gone.value.hint
    found = tokenmill.open_dataset(tmp_path / "o", tokenizer=str(moved))
    assert pickle.loads(pickle.dumps(found)).tokenizer.decode(document) == text
    changed = json.loads(moved.read_text())
    changed["added_tokens"].append({**changed["added_tokens"][0], "id": 9999, "content": "<x>"})
    moved.write_text(json.dumps(changed))
    with pytest.raises(VerificationError, match="another vocabulary"):
        _ = tokenmill.open_dataset(tmp_path / "o", tokenizer=str(moved)).tokenizer


def test_the_tokenizer_of_ranks_alone_decodes_the_separator_that_the_user_named(
    inputs: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "some.tiktoken"
    some = {token: rank for token, rank in bundled_ranks("gpt2").items() if rank < 8000}
    file.write_bytes(write_ranks(some))
    tokenmill.prepare(
        inputs[:1], tmp_path / "o", tokenizer=str(file), pattern="gpt2", eot_token=8000, workers=0
    )
    dataset = tokenmill.open_dataset(tmp_path / "o")
    assert dataset.tokenizer.decode(dataset["train"].documents[0]).endswith("<id 8000>")


def test_a_split_that_is_not_there_is_answered_with_a_suggestion(
    one_file: tokenmill.Dataset, inputs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(KeyError, match="no split 'test' in this dataset") as unknown:
        one_file["test"]
    assert str(unknown.value) == (
        "no split 'test' in this dataset\nhint: did you mean 'val'? the dataset has: train, val"
    )
    with pytest.raises(UnknownSplitError) as misspelt:
        one_file["trian"]
    assert "did you mean 'train'?" in misspelt.value.hint
    assert "test" not in one_file
    assert one_file.get("test") is None
    assert isinstance(one_file, Mapping)
    tokenmill.prepare(inputs[3:4], tmp_path / "o", val=0.00001, workers=0)
    with pytest.raises(UnknownSplitError, match="'val' of this dataset is empty"):
        tokenmill.open_dataset(tmp_path / "o")["val"]


def test_reprs_are_short_and_say_what_it_is(
    one_file: tokenmill.Dataset, inputs: list[Path], tmp_path: Path
) -> None:
    train = one_file["train"]
    documents, tokens = f"{len(train.documents):,}", f"{len(train.tokens):,}"
    said = f"train: {documents} documents, {tokens} tokens"
    assert repr(one_file).startswith(f"Dataset('{one_file.directory}', nanogpt, gpt2; ")
    assert said in repr(one_file)
    assert repr(train) == f"Split('train': {documents} documents, {tokens} tokens, uint16)"
    assert repr(train.tokens) == f"Tokens('train': {tokens} of uint16)"
    assert repr(train.documents) == f"Documents('train': {documents})"
    result = tokenmill.prepare(inputs[:1], one_file.directory, val=0.2, workers=0)
    assert repr(result).startswith(f"Result('{one_file.directory}', nanogpt, gpt2; ")
    assert said in repr(result)
    assert "already complete" in repr(result)
    view = tokenmill.inspect_document(one_file.directory, document=0)
    for one in (result, tokenmill.inspect(one_file.directory), view):
        assert len(repr(one)) < 400
        assert "\n" not in repr(one)


def test_the_repr_of_a_dataset_that_was_pickled_reads_nothing(
    one_file: tokenmill.Dataset, tmp_path: Path
) -> None:
    shutil.copytree(one_file.directory, tmp_path / "o")
    train = tokenmill.open_dataset(tmp_path / "o")["train"]
    whole = pickle.dumps((train._dataset, train, train.tokens, train.documents))
    shutil.rmtree(tmp_path / "o")
    for one in pickle.loads(whole):
        assert repr(one).endswith("not opened yet)")


def test_tokens_compare_and_calculate_as_numpy_arrays_do(
    one_file: tokenmill.Dataset, sharded: tokenmill.Dataset
) -> None:
    tokens = one_file["train"].tokens
    array = np.asarray(tokens)
    assert np.array_equal(tokens == 13, array == 13)
    assert np.array_equal(tokens == tokens, array == array)
    assert np.array_equal(tokens != array, array != array)
    assert np.array_equal(tokens % 2, array % 2)
    assert np.array_equal(100 < tokens, array > 100)  # noqa: SIM300
    assert np.add.reduce(tokens) == array.sum()
    assert (np.max(tokens), np.sum(tokens)) == (array.max(), array.sum())
    assert (tokens == 13).dtype == bool
    assert np.array_equal(tokens[tokens == 13], array[array == 13])
    with pytest.raises(TypeError, match="cannot be written"):
        tokens += 1
    assert np.asarray(sharded["train"].tokens == 13).sum() > 0


def test_a_split_says_that_documents_or_tokens_are_chosen(one_file: tokenmill.Dataset) -> None:
    told = r"use ds\['train'\]\.documents\[0\] or ds\['train'\]\.tokens\[0\]"
    with pytest.raises(TypeError, match=told):
        one_file["train"][0]
    for wrong in (len, list, np.asarray, np.array):
        with pytest.raises(TypeError, match=r"ds\['train'\]\.documents"):
            wrong(one_file["train"])  # type: ignore[operator]
    assert one_file["train"]
