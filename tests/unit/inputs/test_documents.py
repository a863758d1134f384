"""Every row of every source is read exactly once, or set aside with its reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inputs import write_jsonl, write_parquet
from support.reading import read

import tokenmill
from tokenmill.errors import BadRowError, InputError, SourceError
from tokenmill.inputs.readers import jsonl as json_lines
from tokenmill.inputs.readers.jsonl import line_blocks
from tokenmill.inputs.segments import byte_segments, cut_row_groups
from tokenmill.inputs.source import Source


@given(
    st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"x")), max_size=30),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_any_byte_ranges_cover_every_line_exactly_once(
    lines: list[bytes], final_newline: bool, step: int, block: int
) -> None:
    content = b"\n".join(lines) + (b"\n" if final_newline and lines else b"")
    before, json_lines.BATCH_BYTES = json_lines.BATCH_BYTES, block
    try:
        found = []
        for start in range(0, len(content), step):
            stop = min(len(content), start + step)
            for data, offset, _ in line_blocks(io.BytesIO(content), start, stop):
                assert content[offset : offset + len(data)] == data
                assert offset == 0 or content[offset - 1 : offset] == b"\n"
                found.append((offset, data))
    finally:
        json_lines.BATCH_BYTES = before
    assert b"".join(data for _, data in sorted(found)) == content
    assert found == sorted(found)


def test_row_groups_and_bytes_are_cut_by_constants_alone() -> None:
    mib = 1 << 20
    assert cut_row_groups([5 * mib] * 7) == [(0, 4, 0, -1), (4, 7, 0, -1)]
    assert cut_row_groups([30 * mib, 1, 1]) == [(0, 1, 0, -1), (1, 3, 0, -1)]
    assert cut_row_groups([1, 40 * mib, 1]) == [
        (0, 1, 0, -1), (1, 2, 0, 20 * mib), (1, 2, 20 * mib, -1), (2, 3, 0, -1),
    ]  # fmt: skip
    assert len(cut_row_groups([1 << 40])) == 4
    assert len(cut_row_groups([40 * mib] * 9)) == 9, "many row groups are parallel enough"
    assert cut_row_groups([]) == []
    source = Source(number=0, name="a.txt", kind="text", size=33 * mib, fingerprint="")
    assert [(one.start // mib, one.stop // mib) for one in byte_segments(source)] == [
        (0, 16), (16, 32), (32, 33),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.binary(),
        pyarrow.large_binary(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        pyarrow.string_view(),
    ],
    ids=str,
)
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_parquet_of_every_type_and_compression(
    kind: pyarrow.DataType, compression: str, texts: list[str], tmp_path: Path
) -> None:
    some = [*texts[:40], texts[0], texts[0]]
    values = [t.encode() for t in some] if "binary" in str(kind) else some
    column = pyarrow.array(some).dictionary_encode() if "dict" in str(kind) else None
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": column if column is not None else pyarrow.array(values, kind)})
    pyarrow.parquet.write_table(table, path, row_group_size=7, compression=compression)
    assert read(path) == (some, [])


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2", ".xz"])
def test_json_lines_plain_and_compressed(suffix: str, texts: list[str], tmp_path: Path) -> None:
    assert read(write_jsonl(tmp_path / f"x.jsonl{suffix}", texts)) == (texts, [])


def test_a_compressed_file_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    line = b'{"text": "one member"}\n'
    (tmp_path / "m.jsonl.gz").write_bytes(gzip.compress(line) + gzip.compress(line))
    frame = pyarrow.compress(line, "zstd", asbytes=True)
    (tmp_path / "m.jsonl.zst").write_bytes(frame + frame)
    assert read(tmp_path / "m.jsonl.gz")[0] == ["one member"] * 2
    assert read(tmp_path / "m.jsonl.zst")[0] == ["one member"] * 2


def test_a_stream_behind_a_stream_is_never_lost_in_silence(tmp_path: Path) -> None:
    """Python's own bz2 and lzma readers end at the first stream that does not begin like one."""
    line = b'{"text": "one stream"}\n'
    for suffix, compress in ((".bz2", bz2.compress), (".xz", lzma.compress)):
        path = tmp_path / f"m.jsonl{suffix}"
        path.write_bytes(compress(line) * 5)
        assert read(path)[0] == ["one stream"] * 5
        content = bytearray(compress(line) * 5)
        content[2 * len(compress(line)) + 1] ^= 1  # in the third one's magic number
        path.write_bytes(content)
        with pytest.raises((SourceError, InputError)):
            read(path)
        path.write_bytes(compress(line) + b"garbage")
        with pytest.raises((SourceError, InputError)):
            read(path)
    padded = tmp_path / "p.jsonl.xz"
    padded.write_bytes(lzma.compress(line) + b"\0" * 8 + lzma.compress(line) + b"\0" * 4)
    assert read(padded)[0] == ["one stream"] * 2


def test_blank_lines_are_no_rows_and_a_bom_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b"}\n\n{"text": "c"}')
    assert read(path) == (["a", "b", "c"], [])


BAD_LINES = {
    b"{broken": "not valid JSON",
    b'{"text": null}': "is null",
    b'{"text": 7}': "is int",
    b'{"text": ["x"]}': "is array",
    b'{"other": "x"}': "no field 'text'",
    b"[1, 2]": "not a JSON object",
    b'"text"': "not a JSON object",
    b'{"text": "\xff\xfe"}': "UTF-8",
    b'{"text": "\\ud800"}': "not valid JSON",
    b'{"text": "a"} {"text": "b"}': "not valid JSON",
    b'{"z": ' + b"[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:20].decode(errors="replace"))
def test_a_bad_line_stops_with_file_row_and_line_or_is_set_aside(
    line: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "zero"}\n\n{"text": "one"}\n' + line + b'\n{"text": "three"}\n')
    with pytest.raises(BadRowError) as stopped:
        tokenmill.prepare(path, tmp_path / "o", workers=0)
    assert "x.jsonl: row 2 (line 4): " in stopped.value.message
    assert BAD_LINES[line] in stopped.value.message
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, on_bad_row="quarantine")
    counts = result.manifest.counts
    assert (counts["rows"], counts["documents"], counts["quarantined"]) == (4, 3, 1)
    record = msgspec.json.decode((tmp_path / "o" / "quarantine.jsonl").read_bytes())
    assert (record["source"], record["row"], record["line"]) == ("x.jsonl", 2, 4)
    import base64

    assert base64.b64decode(record["bytes"]) == line


def test_nulls_and_bad_utf8_in_parquet_are_named_by_row_group_and_row(tmp_path: Path) -> None:
    values = [b"good"] * 25
    values[13], values[21] = b"\xff\xfe\xfd", None  # type: ignore[call-overload]
    path = write_parquet(tmp_path / "x.parquet", values, rows=10, kind=pyarrow.binary())
    with pytest.raises(BadRowError, match=r"x.parquet: row 13 \(row group 1\): not valid UTF-8"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)
    result = tokenmill.prepare(path, tmp_path / "o", on_bad_row="quarantine", workers=0)
    assert result.manifest.counts["quarantined"] == 2
    lines = (tmp_path / "o" / "quarantine.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [13, 21]
    assert "null" in json.loads(lines[1])["reason"]


def test_a_bad_row_deep_in_a_file_of_many_ranges_has_its_true_row_and_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    good = json.dumps({"text": "word " * 2000}).encode() + b"\n"
    path.write_bytes(b"\n" + good * 4000 + b"{oops\n" + good * 10)
    assert path.stat().st_size > 2 * (16 << 20)
    with pytest.raises(BadRowError, match=r"row 4000 \(line 4002\)"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)
    tokenmill.prepare(path, tmp_path / "o", workers=0, on_bad_row="quarantine")
    record = json.loads((tmp_path / "o" / "quarantine.jsonl").read_bytes())
    assert (record["row"], record["line"]) == (4000, 4002)


def test_a_long_bad_row_is_cut_in_quarantine_with_its_length_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    long = b'{"text": 1, "pad": "' + b"p" * (2 << 20) + b'"}'
    path.write_bytes(b'{"text": "a"}\n' + long + b"\n")
    tokenmill.prepare(path, tmp_path / "o", workers=0, on_bad_row="quarantine")
    import base64
    import hashlib

    record = json.loads((tmp_path / "o" / "quarantine.jsonl").read_bytes())
    assert base64.b64decode(record["bytes"]) == long[: 1 << 20]
    assert record["length"] == len(long)
    assert record["sha256"] == hashlib.sha256(long).hexdigest()


def test_a_damaged_page_is_an_error_that_names_the_row_group(
    texts: list[str], tmp_path: Path
) -> None:
    path = write_parquet(
        tmp_path / "x.parquet", texts, rows=50, compression="none", write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    at = content.find(texts[60].encode()[:200])
    assert at > 0
    content[at + 50] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"row group 1 \(rows 50 to 99\)"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)


def test_a_compressed_file_cut_short_is_an_error(texts: list[str], tmp_path: Path) -> None:
    for suffix in (".gz", ".zst", ".xz", ".bz2"):
        path = write_jsonl(tmp_path / f"x.jsonl{suffix}", texts * 4)
        path.write_bytes(path.read_bytes()[:-3000])
        with pytest.raises(SourceError, match="cannot be read after row"):
            tokenmill.prepare(path, tmp_path / f"o{suffix}", workers=0)


NESTED_LINES = {
    b'{"data": {"text": "inner", "n": 1}, "z": 1}': "inner",
    b'{"data.text": "exact", "data": {"text": "inner"}}': "exact",
    b'{"data.text": "exact", "data": 7}': "exact",
    b'{"data": {"n": 1}, "data.text": "exact"}': "exact",
    b'{"data": {"text": 1}}': "field 'data.text' is int, where text should be",
    b'{"data": {"text": null}}': "field 'data.text' is null, where text should be",
    b'{"data": {"text": {"x": 1}}}': "field 'data.text' is object, where text should be",
    b'{"data": {}}': "no field 'data.text'",
    b'{"other": 1}': "no field 'data.text'",
    b'{"text": "x"}': "no field 'data.text'",
    b'{"data": 1}': "no field 'data.text': 'data' is int, not an object",
    b'{"data": ["text"]}': "no field 'data.text': 'data' is array, not an object",
    b'{"data": null}': "no field 'data.text': 'data' is null, not an object",
    b'{"data.text": 7, "data": {"text": "x"}}': "field 'data.text' is int, where text should be",
    b'["data"]': "not a JSON object",
    b"{oops": "not valid JSON",
    b'{"data": {"text": "\\ud800"}}': "not valid JSON",
}


def test_a_json_field_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(NESTED_LINES))
    texts, bad = read(path, "data.text")
    expected = list(NESTED_LINES.values())
    assert texts == expected[:4]
    assert [row for row, _ in bad] == list(range(4, len(expected)))
    for (_, reason), wanted in zip(bad, expected[4:], strict=True):
        assert reason == wanted or (wanted.startswith("not ") and reason.startswith(wanted))


def test_a_json_field_of_any_depth_and_names_that_are_no_path(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": {"b": {"c": {"d": "deep"}}}, "e.": "dot", ".f": "g", "..": "two"}\n')
    assert read(path, "a.b.c.d") == (["deep"], [])
    for name, text in (("e.", "dot"), (".f", "g"), ("..", "two")):
        assert read(path, name) == ([text], [])
    with pytest.raises(InputError, match=r"no field 'a.b.x'") as error:
        read(path, "a.b.x")
    assert "a.b.c.d, e., .f" in error.value.hint


def struct_table() -> pyarrow.Table:
    inner = pyarrow.array(["a", None, "c", "d"] * 5)
    number = pyarrow.array([1, 2, 3, 4] * 5)
    outer_null = pyarrow.array([False, False, True, False] * 5)
    data = pyarrow.StructArray.from_arrays([number, inner], ["n", "text"], mask=outer_null)
    meta = pyarrow.StructArray.from_arrays([data], ["data"])
    return pyarrow.table({"id": number, "data": data, "meta": meta})


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_struct_columns_by_their_path(name: str, tmp_path: Path) -> None:
    path, table = tmp_path / name, struct_table()
    if name == "x.parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=6)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
    for column in ("data.text", "meta.data.text"):
        texts, bad = read(path, column)
        assert texts == ["a", "d"] * 5
        # a null of the object around it is a null too
        assert [row for row, _ in bad] == [row for row in range(20) if row % 4 in (1, 2)]
        assert {reason for _, reason in bad} == {"null, where text should be"}
    for column, message in (
        ("data", r"is struct<n: int64, text: string>, not text"),
        ("data.n", "is int64, not text"),
        ("data.x", "no column 'data.x'"),
        ("id.text", "no column 'id.text'"),
    ):
        with pytest.raises(InputError, match=message) as error:
            read(path, column)
        if column != "data.n":
            assert "data.n, data.text" in error.value.hint


def test_a_column_of_exactly_that_name_comes_first(tmp_path: Path) -> None:
    table = pyarrow.table({"data.text": ["flat"], "data": [{"text": "inner"}]})
    with pyarrow.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    assert read(tmp_path / "x.arrow", "data.text") == (["flat"], [])
    pyarrow.parquet.write_table(table.select(["data.text"]), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet", "data.text") == (["flat"], [])
    # parquet's own names do not tell the two apart, the order of the leaves does
    pyarrow.parquet.write_table(table, tmp_path / "y.parquet")
    assert read(tmp_path / "y.parquet", "data.text") == (["flat"], [])
