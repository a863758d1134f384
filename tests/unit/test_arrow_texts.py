"""One conversion of Arrow columns to flat text, for the readers and for `Tokenizer.map`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenmill.errors import BadRowError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.settings import Reading
from tokenmill.texts import from_arrow, from_bytes, null_rows, numbers_of, true_rows
from tokenmill.tokenizer.mapper import flat_texts

BINARY = (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view())
TEXT = {
    pyarrow.binary(): pyarrow.string(),
    pyarrow.large_binary(): pyarrow.large_string(),
    pyarrow.binary_view(): pyarrow.string_view(),
}
rows_of = st.lists(
    st.one_of(
        st.none(),
        st.text(max_size=20).map(str.encode),
        st.binary(max_size=4),
        st.sampled_from([b"\xe2\x82", b"\xac", b"a long text that no view holds itself"]),
    ),
    max_size=30,
)


def arrays(rows: list[bytes | None], kind: Any, as_text: bool, how: str) -> Any:
    """The rows as an array of a kind: whole, in the middle of a longer one, or a dictionary."""
    around: list[bytes | None] = [b"before", None, b"\xff"] if how == "sliced" else []
    array = pyarrow.array(around + rows + around, kind)
    if as_text:
        array = array.view(TEXT[kind])
    if how == "dictionary":
        indices = pyarrow.array(range(len(rows)), pyarrow.int32())
        return pyarrow.DictionaryArray.from_arrays(indices, array)
    return array.slice(len(around), len(rows))


@settings(deadline=None)
@given(
    rows_of,
    st.sampled_from(BINARY),
    st.booleans(),
    st.sampled_from(["whole", "sliced", "dictionary"]),
)
def test_every_type_gives_the_same_documents_nulls_and_faults(
    rows: list[bytes | None], kind: Any, as_text: bool, how: str
) -> None:
    # pyarrow cannot decode a dictionary of views; `slices` of the readers turns them into copies.
    assume(how != "dictionary" or kind != pyarrow.binary_view())
    texts, nulls = from_arrow(arrays(rows, kind, as_text, how))
    assert [texts.document(i) for i in range(texts.documents)] == [row or b"" for row in rows]
    assert nulls.tolist() == [row is None for row in rows]
    wrong = set()
    for index, row in enumerate(rows):
        try:
            (row or b"").decode()
        except UnicodeDecodeError:
            wrong.add(index)
    assert set(texts.faults()) == wrong


@settings(deadline=None)
@given(rows_of, st.sampled_from(BINARY), st.integers(0, 3))
def test_the_mapper_takes_the_same_columns_in_chunks(
    rows: list[bytes | None], kind: Any, cut: int
) -> None:
    rows = [row if row is None else row.decode(errors="replace").encode() for row in rows]
    parts = [rows] if cut == 0 else [rows[:cut], [], rows[cut:]]
    chunks = [arrays(part, kind, True, "sliced") for part in parts]
    texts, nulls = flat_texts(pyarrow.chunked_array(chunks))
    assert [texts.document(i) for i in range(texts.documents)] == [row or b"" for row in rows]
    assert nulls.tolist() == [row is None for row in rows]


def test_nothing_nulls_only_and_no_chunk() -> None:
    for array in (pyarrow.nulls(0), pyarrow.nulls(3), pyarrow.array([], pyarrow.string())):
        texts, nulls = from_arrow(array)
        assert (texts.documents, texts.size) == (len(array), 0)
        assert nulls.all()
    assert flat_texts(pyarrow.chunked_array([], pyarrow.string()))[0].documents == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=3), st.booleans()), max_size=20))
def test_some_documents_of_many(documents: list[tuple[bytes, bool]]) -> None:
    keep = np.array([kept for _, kept in documents], bool)
    texts = from_bytes([b"before", *(text for text, _ in documents), b"after"])
    some = texts.slice(1, len(documents) + 1).only(keep)
    found = [some.document(i) for i in range(some.documents)]
    assert found == [text for text, kept in documents if kept]


def test_text_under_a_null_is_not_a_document() -> None:
    offsets = pyarrow.py_buffer(np.array([0, 2, 5, 6], np.int32))
    validity = pyarrow.py_buffer(bytes([0b101]))
    buffers = [validity, offsets, pyarrow.py_buffer(b"ab\xff\xff\xffc")]
    texts, nulls = from_arrow(pyarrow.Array.from_buffers(pyarrow.string(), 3, buffers))
    assert [texts.document(i) for i in range(3)] == [b"ab", b"", b"c"]
    assert nulls.tolist() == [False, True, False]
    assert texts.faults() == {}


@pytest.mark.parametrize("offsets", [[0, 9, 3], [0, 2, 99], [-1, 2, 3]])
def test_offsets_out_of_bounds_are_an_error(offsets: list[int]) -> None:
    buffers = [None, pyarrow.py_buffer(np.array(offsets, np.int32)), pyarrow.py_buffer(b"abc")]
    with pytest.raises(pyarrow.ArrowInvalid):
        from_arrow(pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers))


def test_a_letter_cut_in_two_by_a_boundary_is_bad_on_both_sides() -> None:
    assert list(from_bytes([b"ok", b"\xe2\x82", b"\xac", b"ok"]).faults()) == [1, 2]
    column = pyarrow.array([b"\xe2\x82", b"\xac"], pyarrow.binary()).view(pyarrow.string())
    with pytest.raises(BadRowError, match="row 0 of a batch: not valid UTF-8 at byte 0"):
        flat_texts(column)


def test_a_letter_cut_in_two_by_a_separator_is_two_bad_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ok\n\n\xe2\x82\n\n\xac rest\n\nend")
    reading = Reading("text", b"\n\n")
    source = find_sources([path], "text").sources[0]
    batches = [b for s in segments_of(source, reading) for b in read_segment(source, s, reading)]
    documents = [b.texts.document(i) for b in batches for i in range(b.texts.documents)]
    assert documents == [b"ok", b"end"]
    assert [bad.row for batch in batches for bad in batch.bad] == [1, 2]


@given(st.lists(st.sampled_from([None, True, False]), max_size=40), st.integers(0, 20))
def test_bits_are_read_as_pyarrow_reads_them(values: list[bool | None], start: int) -> None:
    column = pyarrow.array(values, pyarrow.bool_()).slice(min(start, len(values)))
    assert null_rows(column).tolist() == column.is_null().to_pylist()
    if len(column):
        known = column.fill_null(False)
        assert true_rows(known).tolist() == known.to_pylist()


@pytest.mark.parametrize("kind", [pyarrow.int8(), pyarrow.uint16(), pyarrow.int32()])
def test_numbers_are_those_of_a_slice(kind: Any) -> None:
    assert numbers_of(pyarrow.array([5, 6, 7, 8], kind).slice(1, 2)).tolist() == [6, 7]
