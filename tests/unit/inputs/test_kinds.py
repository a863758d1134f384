"""Inputs as people have them: CSV, JSON arrays, named text files, stdin, odd columns and rows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import polars_files
from support.bisect import quarantined
from support.commands import command
from support.inputs import write_jsonl

import tokenmill
from tokenmill.errors import BadRowError, InputError, SourceError, TooLargeError, UsageError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.kind import ReadRequest
from tokenmill.inputs.kinds import kind_named, read_segment, segments_of
from tokenmill.inputs.rows import csv_files, json_arrays
from tokenmill.inputs.rows.json_arrays import elements
from tokenmill.settings import Reading
from tokenmill.system.memory import MemoryShare


def texts_of(path: Path, column: str = "text", **rules: Any) -> list[str]:
    """The texts of a file; no row of it is bad."""
    source = find_sources([path], column, rules=InputRules(**rules)).sources[0]
    reading = Reading(column)
    found = []
    for segment in segments_of(source, reading):
        for batch in read_segment(source, segment, reading):
            assert batch.bad == []
            found += [batch.texts.document(i).decode() for i in range(batch.texts.documents)]
    return found


def bad_rows(path: Path, column: str = "text") -> list[tuple[int, int, str]]:
    source = find_sources([path], column).sources[0]
    reading = Reading(column)
    return [
        (bad.row, bad.line, bad.reason)
        for segment in segments_of(source, reading)
        for batch in read_segment(source, segment, reading)
        for bad in batch.bad
    ]


# --- CSV -------------------------------------------------------------------------------------

HARD = [
    "plain",
    'a "quote", a comma',
    "two\nlines\r\nand more",
    "",
    "ä 👩‍👧",
    "tab\there",
    " spaces ",
]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_csv_as_the_standard_library_writes_it(
    kind: str, ending: str, compressed: bool, tmp_path: Path
) -> None:
    out = io.StringIO(newline="")
    delimiter = "," if kind == "csv" else "\t"
    writer = csv.writer(out, delimiter=delimiter, lineterminator=ending)
    writer.writerow(["id", "text", "more"])
    writer.writerows([i, text, "x"] for i, text in enumerate(HARD))
    content = b"\xef\xbb\xbf" + out.getvalue().encode()
    path = tmp_path / f"x.{kind}"
    if compressed:
        path, content = tmp_path / f"x.{kind}.gz", gzip.compress(content)
    path.write_bytes(content)
    assert texts_of(path) == HARD


def test_a_csv_dataset_is_proven_and_cut_as_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmill.inputs.rows import row_files

    monkeypatch.setattr(row_files, "BATCH_BYTES", 1000)
    path = tmp_path / "x.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "id"])
        writer.writerows([f"row {i}\n" * (i % 9), i] for i in range(300))
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, val="0.1")
    assert result.manifest.counts["rows"] == 300
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    assert report.complete


def test_bad_rows_of_csv_are_named_by_row_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(
        b'id,text\n1,"two\nlines"\n2\n\n3,a,b\n4,"x"y\n5,\xff\n6,good\n7,"open\nto the end\n'
    )
    assert bad_rows(path) == [
        (1, 3, "has 1 fields, the header has 2"),
        (2, 5, "has 3 fields, the header has 2"),
        (3, 6, "not valid CSV: ',' expected after '\"'"),
        (4, -1, "not valid UTF-8 at byte 0 (invalid start byte)"),
        (6, 9, "not valid CSV: unexpected end of data"),
    ]
    with pytest.raises(BadRowError, match=r"x\.csv: row 1 \(line 4\): has 1 fields"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, val="none")
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, on_bad_row="quarantine", val="none")
    assert result.manifest.counts["documents"] == 2
    assert [(one["row"], one.get("line")) for one in quarantined(tmp_path / "o")] == [
        (1, 4), (2, 6), (3, 7), (4, None), (6, 10),
    ]  # fmt: skip
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").ok


@pytest.mark.long
def test_a_quote_that_is_never_closed_takes_no_more_memory_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'text\n"open\n' + b"x" * 100 + b"\n" * 20_000_000)
    source = find_sources([path], "text").sources[0]
    segment = next(segments_of(source, Reading("text")))
    room = MemoryShare(100_000_000)
    with pytest.raises(TooLargeError, match=r"row 0 \(line 2\).*a quote may be missing"):
        list(kind_named("csv").read(ReadRequest(source, segment, Reading("text"), room=room)))


def test_what_is_wrong_with_a_csv_file_is_said_before_work_begins(tmp_path: Path) -> None:
    for content, message in (
        (b"id;text\n1;x\n", "no column 'text'"),
        (b"text,text\na,b\n", "more than one column"),
        ("text\nx\n".encode("utf-16"), "UTF-16"),
        (b"PAR1", "looks like parquet"),
        (b'"text\nx\n', "its header cannot be read"),
    ):
        path = tmp_path / "x.csv"
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            find_sources([path], "text")


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2)))
def test_csv_of_any_text(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["id", "text"])
        writer.writerows(rows)
    assert texts_of(path) == [text for _, text in rows]


# --- JSON arrays -----------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=8), st.integers(1, 40), st.sampled_from([None, 1]))
def test_elements_of_an_array_wherever_blocks_end(
    values: list[Any], block: int, indent: int | None
) -> None:
    content = json.dumps(values, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "BATCH_BYTES", block)
        if not content[:block].lstrip():
            return
        found = list(elements(io.BytesIO(content)))
    assert [json.loads(element) for element, _ in found] == values
    for element, position in found:
        assert content[position : position + len(element)] == element


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"text": "a"}', "before the closing"),
        (b'[{"text": "a"},]', "nothing is before"),
        (b'[{"text": "a"}] x', "something follows"),
        (b'[{"text": "a', "before the closing"),
    ],
)
def test_an_array_that_is_damaged_is_never_cut_short_in_silence(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises((SourceError, InputError), match=message):
        texts_of(path)


@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.jsonl"])
def test_a_json_array_is_read_row_by_row(name: str, tmp_path: Path) -> None:
    rows = [{"text": f"text [{i}] {{", "more": {"text": "no"}} for i in range(50)]
    content = json.dumps(rows, indent=2).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert texts_of(path) == [str(row["text"]) for row in rows]
    tokenmill.prepare(path, tmp_path / "o", workers=0, val="0.2")
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").complete


def test_bad_elements_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'[{"text": "a"}, {"text": 5}, {"text" "b"}, 7, {"text": "c"}]')
    rows = [(row, reason.split(":")[0]) for row, _, reason in bad_rows(path)]
    assert rows == [
        (1, "field 'text' is int, where text should be"),
        (2, "not valid JSON"),
        (3, "not a JSON object"),
    ]


# --- rows of JSON ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "a", "score": NaN}', "a"),
        (b'{"score": -Infinity, "x": [NaN], "text": "NaN \\"NaN"}', 'NaN "NaN'),
        (b'{"text": null, "text": "b"}', "b"),
        (b'{"text": 5, "text": "b"}', "b"),
        (b'{"text": "a", "text": "b"}', "b"),
    ],
)
def test_json_rows_that_are_good(line: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(line + b"\n")
    assert texts_of(path) == [text]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": NaN}', "field 'text' is null"),
        (b'{"text": "a", "text": null}', "field 'text' is null"),
        (b'{"text": "a", "text": 5}', "field 'text' is int"),
        (b'{"text": "a", "x": Nan}', "not valid JSON"),
        (b'{"text": "a" "x": NaN}', "not valid JSON"),
    ],
)
def test_json_rows_that_are_bad(line: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(line + b'\n{"text": "good"}\n')
    assert [found.startswith(reason) for _, _, found in bad_rows(path)] == [True]


# --- columns ---------------------------------------------------------------------------------


def table_of_two() -> pyarrow.Table:
    inner = pyarrow.array([{"b": "inner", "c": "x"}] * 3)
    return pyarrow.table({"id": [1, 2, 3], "a": inner, "a.b": ["one", "two", "three"]})


@pytest.mark.parametrize("order", [["id", "a", "a.b"], ["a.b", "a", "id"]])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_column_named_with_a_dot_beside_a_struct(
    kind: str, order: list[str], tmp_path: Path
) -> None:
    table, path = table_of_two().select(order), tmp_path / f"x.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif kind == "arrow":
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    assert texts_of(path, "a.b") == ["one", "two", "three"]
    assert texts_of(path, "a.c") == ["x"] * 3


def test_files_with_text_columns_of_their_own(tmp_path: Path) -> None:
    one = write_jsonl(tmp_path / "one.jsonl", ["first"])
    (tmp_path / "web").mkdir()
    two = tmp_path / "web/two.jsonl"
    two.write_text('{"content": "second", "text": "not this"}\n')
    columns = ["text", "web/*=content"]
    result = tokenmill.prepare([one, two], tmp_path / "o", workers=0, text_column=columns)
    assert result.manifest.sources[1]["text_column"] == "content"
    assert "text_column" not in result.manifest.sources[0]
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").ok
    with pytest.raises(tokenmill.TokenmillError, match=r"two\.jsonl"):
        tokenmill.prepare([one, two], tmp_path / "o", workers=0)
    with pytest.raises(InputError, match="no input matches"):
        tokenmill.prepare([one, two], tmp_path / "p", workers=0, text_column="*.csv=content")
    with pytest.raises(UsageError, match="given twice"):
        tokenmill.prepare([one, two], tmp_path / "p", workers=0, text_column=["a", "b"])
    options = ("--text-column", "text", "--text-column", "web/*=content", "--workers", 0)
    done = command("prepare", one, two, "-o", tmp_path / "o", *options)
    assert "already complete" in done.stdout, done.stderr


def test_encrypted_parquet_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PARE" + bytes(100) + b"PARE")
    with pytest.raises(InputError, match="is encrypted"):
        find_sources([path], "text")


@pytest.mark.parametrize("name", ["PLAIN", "CATEGORICAL"])
def test_files_of_polars(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    content = getattr(polars_files, name)
    path.write_bytes(content)
    assert texts_of(path) == polars_files.TEXTS
    assert pyarrow.ipc.open_file(path).read_all().num_rows == 3
    for stop in (len(content) - 1, len(content) // 2, 100):  # cut short, it is still refused
        path.write_bytes(content[:stop])
        with pytest.raises(InputError):
            find_sources([path], "text")


# --- files by any name -----------------------------------------------------------------------


def test_markdown_and_source_code_that_is_named_is_text(tmp_path: Path) -> None:
    for name in ("a.md", "b.py", "c.RS"):
        (tmp_path / name).write_text(f"text of {name}")
        assert texts_of(tmp_path / name) == [f"text of {name}"]
    assert [s.kind for s in find_sources([tmp_path / "*.py"], "text").sources] == ["text"]


def test_as_says_what_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "corpus.dat"
    path.write_text('text,id\n"one\ntwo",1\n')
    with pytest.raises(InputError, match="unknown extension") as refused:
        find_sources([path], "text")
    assert "--as text" in refused.value.hint
    assert texts_of(path, kinds=(("*", "csv"),)) == ["one\ntwo"]
    assert texts_of(path, kinds=(("*.dat", "text"),)) == ['text,id\n"one\ntwo",1\n']
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, as_kind="csv", val="none")
    assert result.manifest.sources[0]["as"] == "csv"
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").complete
    with pytest.raises(tokenmill.TokenmillError, match=r"corpus\.dat"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, as_kind="text", val="none")
    with pytest.raises(InputError, match="unknown kind"):
        tokenmill.prepare(path, tmp_path / "p", workers=0, as_kind="excel")


def test_a_folder_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("LICENSE", "a.md", "b.unknown"):
        (tmp_path / "in" / name).write_text(name)
    done = command(
        "prepare", tmp_path / "in", "-o", tmp_path / "o", "--as", "text", "--val", "none",
        "--workers", 0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert tokenmill.open_dataset(tmp_path / "o").manifest.counts["documents"] == 3


# --- stdin -----------------------------------------------------------------------------------


class Stdin(io.BytesIO):
    @property
    def buffer(self) -> Stdin:
        return self


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield lambda content: monkeypatch.setattr(sys, "stdin", Stdin(content))
    assert not list((tmp_path / "cache").rglob("*stdin/*"))  # nothing stays


def test_standard_input(piped: Callable[[bytes], None], tmp_path: Path) -> None:
    content = b'{"text": "a"}\n{"text": "b"}\n'
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    options: dict[str, Any] = {"workers": 0, "val": "docs:1"}
    tokenmill.prepare(path, tmp_path / "expected", **options)
    for done in (False, True):
        piped(content)
        result = tokenmill.prepare("-", tmp_path / "o", as_kind="jsonl", **options)
        assert result.already_done == done
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "o" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert result.manifest.sources[0]["name"] == "stdin"
    path.rename(tmp_path / "stdin")
    assert tokenmill.verify_deep(tmp_path / "o", sample="all", source_root=tmp_path).complete
    piped(content + b'{"text": "c"}\n')
    with pytest.raises(tokenmill.TokenmillError, match="stdin: 28 bytes"):
        tokenmill.prepare(["-"], tmp_path / "o", as_kind="jsonl", **options)


def test_standard_input_that_cannot_be_read(piped: Callable[[bytes], None], tmp_path: Path) -> None:
    piped(b"x")
    with pytest.raises(UsageError, match="not known") as refused:
        tokenmill.prepare("-", tmp_path / "o", workers=0)
    assert "as_kind='jsonl'" in refused.value.hint
    with pytest.raises(UsageError, match="only input"):
        tokenmill.prepare(["-", "x"], tmp_path / "o", workers=0, as_kind="text")
    piped(b"")
    with pytest.raises(InputError, match="is empty"):
        tokenmill.prepare("-", tmp_path / "o", workers=0, as_kind="text")
    assert "only `prepare` reads" in command("plan", "-", "-o", tmp_path / "o").stderr
    assert csv_files.CSV.sequential
