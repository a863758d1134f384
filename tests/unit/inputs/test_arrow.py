"""Arrow IPC, streams and files: the same documents as parquet, and no damage that kills."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.ipc
import pytest
from support.arrow import FORMS
from support.inputs import write_arrow
from support.reading import read

import tokenmill
from tokenmill.errors import BadRowError, InputError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.inputs.segments import cut_record_batches
from tokenmill.settings import Reading

KINDS = (
    pyarrow.string(),
    pyarrow.binary(),
    pyarrow.large_string(),
    pyarrow.large_binary(),
    pyarrow.string_view(),
    pyarrow.binary_view(),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_form_and_compression(
    kind: pyarrow.DataType, form: str, compression: str | None, texts: list[str], tmp_path: Path
) -> None:
    some = texts[:40]
    values = [t.encode() for t in some] if "binary" in str(kind) else some
    path = write_arrow(
        tmp_path / "x.arrow", values, rows=7, kind=kind, form=form, compression=compression
    )
    assert read(path) == (some, [])
    assert find_sources([path], "text").sources[0].rows == 40


@pytest.mark.parametrize("suffix", [".arrows", ".feather", ".ipc", ".ARROW"])
def test_other_extensions(suffix: str, tmp_path: Path) -> None:
    assert read(write_arrow(tmp_path / f"x{suffix}", ["a", "b"], form="file"))[0] == ["a", "b"]


def test_record_batches_are_cut_by_constants_alone() -> None:
    mib = 1 << 20
    assert cut_record_batches([5 * mib] * 7, [9] * 7, {}) == [(0, 4, 0, -1), (4, 7, 0, -1)]
    large = [1, 50 * mib, 1]
    assert cut_record_batches(large, [1, 9, 1], {}) == [(0, 1, 0, -1), (1, 2, 0, -1), (2, 3, 0, -1)]
    assert cut_record_batches(large, [1, 8, 1], {1: 49 * mib})[1:-1] == [
        (1, 2, 0, 3), (1, 2, 3, 6), (1, 2, 6, -1),
    ]  # fmt: skip
    assert cut_record_batches(large, [1, 1, 1], {1: 49 * mib})[1:-1] == [(1, 2, 0, -1)]
    assert cut_record_batches(large, [1, 0, 1], {})[1:-1] == [(1, 2, 0, -1)]
    assert cut_record_batches([], [], {}) == []


def test_a_row_in_each_record_batch_is_no_batch_for_each_row(tmp_path: Path) -> None:
    texts = [f"row {i}" for i in range(500)]
    for kind in (None, pyarrow.string_view()):
        path = write_arrow(tmp_path / "x.arrow", texts, rows=1, kind=kind)
        source = find_sources([path], "text").sources[0]
        (segment,) = segments_of(source, Reading("text"))
        (batch,) = read_segment(source, segment, Reading("text"))
        assert batch.texts.documents == 500
        assert batch.rows.tolist() == list(range(500))


def many_columns(texts: list[bytes | None], kind: pyarrow.DataType) -> pyarrow.Table:
    """The text behind columns of every shape: its buffers must be found all the same."""
    n = len(texts)
    number = pyarrow.array(range(n))
    bytes_of = dict(zip(KINDS[::2], KINDS[1::2], strict=True))  # bad UTF-8 can be made of them only
    return pyarrow.table(
        {
            "null": pyarrow.nulls(n),
            "bool": pyarrow.array([i % 3 == 0 for i in range(n)]),
            "struct": pyarrow.array([{"a": i, "b": {"c": str(i)}} for i in range(n)]),
            "list": pyarrow.array([["x"] * (i % 3) for i in range(n)]),
            "map": pyarrow.array([[("k", 7)]] * n, pyarrow.map_("string", "int32")),
            "fixed": pyarrow.array([b"abc"] * n, pyarrow.binary(3)),
            "dictionary": pyarrow.array([str(i % 3) for i in range(n)]).dictionary_encode(),
            "decimal": number.cast(pyarrow.decimal128(30)),
            "time": number.cast(pyarrow.timestamp("us")),
            "pair": pyarrow.array([[1, 2]] * n, pyarrow.list_(pyarrow.int8(), 2)),
            "text": pyarrow.array(texts, bytes_of.get(kind, kind)).view(kind),
            "after": pyarrow.array(["y"] * n),
        }
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kind", [*KINDS, pyarrow.dictionary(pyarrow.int8(), pyarrow.binary())], ids=str
)
def test_a_large_record_batch_is_read_in_windows(
    kind: pyarrow.DataType, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.inputs.segments.SEGMENT_BYTES", 200)
    monkeypatch.setattr("tokenmill.inputs.readers.arrow.LARGE_BATCH", 400)
    monkeypatch.setattr("tokenmill.inputs.readers.arrow_windows.BATCH_BYTES", 60)
    monkeypatch.setattr("tokenmill.inputs.readers.arrow_windows.WINDOW_ROWS", 11)
    texts: list[bytes | None] = [b"t%d " % i * (i % 9) for i in range(100)]
    for row in (0, 7, 8, 9, 33, 99):
        texts[row] = None
    texts[50] = b"\xff bad"
    table = many_columns(texts, kind)
    path = tmp_path / "x.arrow"
    new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    with new(path, table.schema) as writer:
        writer.write_table(table)
    good, bad = read(path)
    assert good == [t.decode() for i, t in enumerate(texts) if t is not None and i != 50]
    assert [row for row, _ in bad] == [0, 7, 8, 9, 33, 50, 99]
    source = find_sources([path], "text").sources[0]
    parts = len(list(segments_of(source, Reading("text"))))
    assert (parts > 3) == (kind in KINDS[:4])


def dictionary_stream(path: Path, change: str) -> list[str]:
    """Record batches of a dictionary column whose dictionary is kept, grows or is replaced."""
    words = [["a", "b"], ["a", "b", "c"] if change == "delta" else ["x", "y"]]
    if change == "none":
        words[1] = words[0]
    batches = [
        pyarrow.record_batch(
            {"n": [1] * 3, "text": pyarrow.DictionaryArray.from_arrays([1, 0, i], w)}
        )
        for i, w in enumerate(words)
    ]
    options = pyarrow.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pyarrow.ipc.new_stream(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return [text for batch in batches for text in batch.column("text").to_pylist()]


@pytest.mark.parametrize("change", ["none", "delta", "replaced"])
def test_dictionaries_that_stay_grow_or_are_replaced(change: str, tmp_path: Path) -> None:
    texts = dictionary_stream(tmp_path / "x.arrow", change)
    assert read(tmp_path / "x.arrow") == (texts, [])
    assert find_sources([tmp_path / "x.arrow"], "text").sources[0].chained == (change != "none")


def test_a_dictionary_or_views_of_one_long_text_are_decoded_in_small_batches(
    tmp_path: Path,
) -> None:
    text = pyarrow.array(["long words here " * 5800])
    indices = pyarrow.array([0] * 9000, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(indices, text)
    table = pyarrow.table({"text": column})
    with pyarrow.ipc.new_stream(tmp_path / "d.arrow", table.schema) as writer:
        writer.write_table(table)
    view = text.cast(pyarrow.string_view())
    buffers = [None, pyarrow.py_buffer(view.buffers()[1].to_pybytes() * 9000), view.buffers()[2]]
    views = pyarrow.Array.from_buffers(pyarrow.string_view(), 9000, buffers)
    table = pyarrow.table({"text": views})
    with pyarrow.ipc.new_file(tmp_path / "v.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("d.arrow", "v.arrow"):
        source = find_sources([tmp_path / name], "text").sources[0]
        assert source.size < 300_000
        (segment,) = segments_of(source, Reading("text"))
        rows = 0
        for batch in read_segment(source, segment, Reading("text")):
            rows += batch.row_count
            assert batch.texts.data.nbytes < 100 << 20
            if rows > 1000:
                break


def test_nulls_and_bad_utf8_are_named_by_record_batch_and_row(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"good"] * 25
    values[13], values[21] = b"\xff\xfe\xfd", None
    for kind in (pyarrow.binary(), pyarrow.binary_view()):
        path = write_arrow(tmp_path / "x.arrow", values, rows=10, kind=kind)
        with pytest.raises(BadRowError, match=r"row 13 \(record batch 1\): not valid UTF-8"):
            tokenmill.prepare(path, tmp_path / f"o-{kind}", workers=0)
        bad = read(path)[1]
        assert [row for row, _ in bad] == [13, 21]
        assert "null" in bad[1][1]


def test_columns_are_checked_as_those_of_parquet(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "x.arrow", ["a"])
    with pytest.raises(InputError, match="no column 'body'") as error:
        find_sources([path], "body")
    assert "id, text" in error.value.hint
    table = pyarrow.table({"text": [1]})
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match="is int64, not text"):
        find_sources([path], "text")


def test_an_empty_stream_and_empty_batches(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "x.arrow", [])
    assert read(path) == ([], [])
    schema = pyarrow.schema([("text", pyarrow.string())])
    with pyarrow.ipc.new_stream(path, schema) as writer:
        for texts in ([], ["a"], [], []):
            writer.write_batch(pyarrow.record_batch([pyarrow.array(texts, "string")], schema))
    assert read(path) == (["a"], [])


def test_a_legacy_stream_without_continuation_marks(texts: list[str], tmp_path: Path) -> None:
    table = pyarrow.table({"text": texts[:30]})
    options = pyarrow.ipc.IpcWriteOptions(use_legacy_format=True)
    for form, new in (("s", pyarrow.ipc.new_stream), ("f", pyarrow.ipc.new_file)):
        path = tmp_path / f"{form}.arrow"
        with new(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=7)
        assert read(path) == (texts[:30], [])


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_at_any_point_is_an_error_before_the_work(form: str, tmp_path: Path) -> None:
    """Also between two messages: a stream without its end mark may have lost rows."""
    content = write_arrow(tmp_path / "x.arrow", ["some text"] * 50, rows=9, form=form).read_bytes()
    for number in range(100):
        path = tmp_path / f"{number}.arrow"
        path.write_bytes(content[: len(content) * number // 100])
        with pytest.raises(InputError) as error:
            find_sources([path], "text")
        assert path.name in error.value.message
    for more in (b"\0", b"\0" * 8, content):
        (tmp_path / "more.arrow").write_bytes(content + more)
        with pytest.raises(InputError):
            find_sources([tmp_path / "more.arrow"], "text")
