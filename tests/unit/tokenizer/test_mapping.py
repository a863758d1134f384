"""`tok.map` under datasets, Arrow, multiprocessing and Ray: shapes, caching, nulls, examples."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
from support.inputs import sample_texts
from support.mapping import (
    EOT,
    expected,
    tok,  # noqa: F401
)

from tokenmill import Tokenizer
from tokenmill.errors import BadRowError, UsageError
from tokenmill.tokenizer.mapper import with_eot


def columns(kind: str, texts: list[str]) -> Any:
    if kind == "list":
        return {"text": texts}
    if kind == "tuple":
        return {"text": tuple(texts)}
    if kind == "numpy objects":
        return {"text": np.array(texts, dtype=object)}
    if kind == "numpy strings":
        return {"text": np.array([t.rstrip("\0") for t in texts])}
    if kind == "pandas":
        import pandas

        return {"text": pandas.Series(texts)}
    array = pyarrow.array(texts, getattr(pyarrow, kind)())
    # a slice, and several chunks: offsets that do not begin at 0
    padded = pyarrow.concat_arrays([pyarrow.array(["not this"], array.type), array])
    if kind == "large_string":
        return {"text": padded[1:]}
    half = len(texts) // 2
    return {"text": pyarrow.chunked_array([padded[1 : half + 1], array[half:]])}


@pytest.mark.parametrize(
    "kind",
    ["list", "tuple", "numpy objects", "numpy strings", "pandas", "string", "large_string",
     "string_view"],
)  # fmt: skip
def test_every_shape_of_a_batch_gives_the_references_ids(kind: str, tok: Tokenizer) -> None:
    texts = sample_texts()[:120]
    if kind == "numpy strings":
        texts = [text for text in texts if len(text) < 2000 and "\0" not in text]
    found = tok.map(columns(kind, texts))
    assert [ids.tolist() for ids in found["ids"]] == [[*ids, EOT] for ids in expected(texts)]
    assert found["len"].tolist() == [len(ids) + 1 for ids in expected(texts)]
    assert all(isinstance(ids, np.ndarray) and ids.dtype == np.uint16 for ids in found["ids"])


@pytest.mark.parametrize("make", [pyarrow.table, pyarrow.RecordBatch.from_pydict])
def test_arrow_in_is_arrow_out_of_the_same_kind(make: Any, tok: Tokenizer) -> None:
    texts = sample_texts()[:50]
    batch = make({"n": pyarrow.array(range(50)), "text": pyarrow.array(texts)})
    found = tok.mapper(keep=["n"], eot="none")(batch)
    assert type(found) is type(batch)
    assert found.schema.names == ["n", "ids", "len"]
    assert found.column("ids").to_pylist() == expected(texts)
    assert found.column("n").to_pylist() == list(range(50))


@pytest.mark.parametrize("text", ["", "word", "two words", "<|endoftext|>"])
def test_one_row_gives_one_array(text: str, tok: Tokenizer) -> None:
    found = tok.map({"text": text, "other": 1})
    assert isinstance(found["ids"], np.ndarray)
    assert found["ids"].tolist() == [*expected([text])[0], EOT]
    assert found["len"] == len(found["ids"])


@pytest.mark.parametrize("batch", [{"text": []}, {"text": pyarrow.array([], pyarrow.string())},
                                   {"text": np.array([], object)}])  # fmt: skip
def test_an_empty_batch_is_an_empty_batch(batch: Any, tok: Tokenizer) -> None:
    found = tok.map(batch)
    assert (found["ids"], found["len"].tolist()) == ([], [])
    empty = pyarrow.table({"text": pyarrow.chunked_array([], pyarrow.string())})
    assert tok.map(empty).num_rows == 0


@pytest.mark.parametrize("place", ["end", "start", "none"])
def test_the_separator_stands_at_the_end_the_start_or_nowhere(place: Any, tok: Tokenizer) -> None:
    texts = ["a b", "", "c"]
    rows = {"end": lambda ids: [*ids, EOT], "start": lambda ids: [EOT, *ids], "none": list}[place]
    found = tok.mapper(eot=place)({"text": texts})
    assert [ids.tolist() for ids in found["ids"]] == [rows(ids) for ids in expected(texts)]


def test_placing_separators_is_arithmetic() -> None:
    ids, offsets = np.arange(5, dtype=np.uint32), np.array([0, 2, 2, 5])
    out, bounds = with_eot(ids, offsets, "start", 9, np.array([False, True, False]))
    assert (out.tolist(), bounds.tolist()) == ([9, 0, 1, 9, 2, 3, 4], [0, 3, 3, 7])


def test_null_is_an_error_that_names_the_row_unless_the_caller_says_what_it_is(
    tok: Tokenizer,
) -> None:
    texts = ["a", "b", None, "c"]
    shapes = ({"text": texts}, pyarrow.table({"text": texts}), {"text": np.array(texts, object)})
    for batch in shapes:
        with pytest.raises(BadRowError, match="null in row 2 of a batch of 4") as caught:
            tok.map(batch)
        assert "nulls='keep'" in caught.value.hint
    with pytest.raises(BadRowError, match="null in row 0"):
        tok.map({"text": None})
    kept = tok.mapper(nulls="keep")
    assert kept(shapes[1]).column("ids").to_pylist()[2] is None
    found = kept(shapes[0])
    assert found["ids"][2] is None
    assert [ids.tolist() for ids in found["ids"] if ids is not None] == [
        [*ids, EOT] for ids in expected(["a", "b", "c"])
    ]
    assert kept({"text": None}) == {"ids": None, "len": 0}
    empty = tok.mapper(nulls="empty")(shapes[0])
    assert empty["ids"][2].tolist() == [EOT]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"text": [1, 2]}, "type int64, not text"),
        ({"text": ["a", 2]}, "not all text"),
        ({"text": [b"a"]}, "type binary, not text"),
        (pyarrow.table({"text": [1.5]}), "type double, not text"),
        ({"content": ["a"]}, "no column 'text'; there are: content"),
        (pyarrow.table({"content": ["a"]}), "no column 'text'; there are: content"),
        (pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text"] * 2), "2 columns 'text'"),
        ({"text": b"a row"}, "column 'text': bytes, not text"),
        ({"text": 17}, "column 'text': int, not text"),
        (17, "a batch of the type int"),
        (pyarrow.array(["a"]), "a batch of the type StringArray"),
    ],
    ids=str,
)
def test_what_is_not_text_is_named(batch: Any, said: str, tok: Tokenizer) -> None:
    with pytest.raises((UsageError, BadRowError), match=said):
        tok.map(batch)


def test_bytes_that_are_no_utf8_in_an_arrow_column_are_named_by_row(tok: Tokenizer) -> None:
    raw = pyarrow.array([b"good", b"bad \xff", b"good"], pyarrow.binary())
    array = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    with pytest.raises(BadRowError, match=r"row 1 of a batch: not valid UTF-8 at byte 4"):
        tok.map(pyarrow.table({"text": array}))


def test_a_pandas_frame_stays_one(tok: Tokenizer) -> None:
    import pandas

    frame = pandas.DataFrame({"n": [1, 2], "text": ["a", "b c"]}, index=[7, 8])
    found = tok.mapper(keep=["n"])(frame)
    assert isinstance(found, pandas.DataFrame)
    assert [ids.tolist() for ids in found["ids"]] == [[*ids, EOT] for ids in expected(["a", "b c"])]
    assert found["n"].tolist() == [1, 2]


def test_ids_never_wrap_around(tok: Tokenizer) -> None:
    assert tok.map({"text": "a"})["ids"].dtype == np.uint16
    large = Tokenizer("cl100k_base")
    assert large.map({"text": "a"})["ids"].tolist()[-1] == 100_257
    with pytest.raises(UsageError, match="uint16: ids go up to 100276"):
        large.mapper(dtype="uint16")({"text": "a"})
    assert large.mapper(dtype="int64")({"text": "a"})["ids"].dtype == np.int64
    # a separator of the caller's above the vocabulary counts too
    assert Tokenizer("gpt2", eot=70_000).map({"text": "a"})["ids"].tolist()[-1] == 70_000


@pytest.mark.parametrize("option", [{"eot": "front"}, {"dtype": "int8"}, {"nulls": "drop"}])
def test_an_unknown_option_is_refused(option: Any, tok: Tokenizer) -> None:
    with pytest.raises(UsageError, match="not one of"):
        tok.mapper(**option)


def test_columns_to_keep_are_there_and_are_not_ours(tok: Tokenizer) -> None:
    rows = {"text": ["a"], "id": [1]}
    for batch in (rows, pyarrow.table(rows)):
        assert list(tok.mapper(keep="id")(batch)["id"]) in ([1], [pyarrow.scalar(1)])
        with pytest.raises(UsageError, match="no column 'url'; there are: text, id"):
            tok.mapper(keep=["url"])(batch)
    for name in ("ids", "len"):  # theirs would be replaced without a word
        with pytest.raises(UsageError, match="a column of the result"):
            tok.mapper(keep=[name])
    with pytest.raises(UsageError, match="one column"):
        tok.mapper(column=["text"])


def test_what_pandas_has_for_null_is_null_beside_lone_surrogates_too(tok: Tokenizer) -> None:
    import pandas

    found = tok.mapper(nulls="keep")({"text": ["\ud800", float("nan"), pandas.NA, None]})
    assert found["ids"][0] is not None
    assert found["ids"][1:] == [None] * 3


def test_an_empty_arrow_array_may_have_no_offsets(tok: Tokenizer) -> None:
    nothing = pyarrow.py_buffer(b"")
    for kind in (pyarrow.string(), pyarrow.large_string()):
        array = pyarrow.Array.from_buffers(kind, 0, [None, None, nothing])
        assert tok.map({"text": array})["ids"] == []


def test_a_streaming_dataset_is_mapped_alike(tok: Tokenizer) -> None:
    texts = sample_texts()[:30]
    ds = datasets.Dataset.from_dict({"text": texts}).to_iterable_dataset()
    found = [list(row["ids"]) for row in ds.map(tok.map, batched=True, batch_size=7)]
    assert found == [[*ids, EOT] for ids in expected(texts)]


def test_a_column_that_was_changed_before_is_taken_as_it_is_now(tok: Tokenizer) -> None:
    """The Arrow data under a batch of datasets is not what another function has put over it."""

    def changed(batch: Any) -> Any:
        batch["text"] = [text.upper() for text in batch["text"]]
        return tok.map(batch)

    def untouched(batch: Any) -> Any:
        assert "text" in batch.keys_to_format
        return tok.map(batch)

    ds = datasets.Dataset.from_dict({"text": ["a word", "b"]})
    assert ds.map(untouched, batched=True)["ids"][:] == [[*i, EOT] for i in expected(ds["text"][:])]
    found = ds.map(changed, batched=True)["ids"][:]
    assert found == [[*ids, EOT] for ids in expected(["A WORD", "B"])]


def test_a_mapper_shows_all_that_it_was_given() -> None:
    mapper = Tokenizer("gpt2").mapper(eot="start", dtype="int32", keep="n")
    shown = "(column='text', eot='start', dtype='int32', nulls='error', keep=('n',))"
    assert repr(mapper).endswith(f".mapper{shown}")
