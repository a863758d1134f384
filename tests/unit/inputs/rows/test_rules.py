"""`--text` and `--where` mean the same for every kind of file with columns, and all rows count."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from support.bisect import quarantined
from support.cases import quick
from support.commands import command

import tokenmill
from tokenmill.errors import BadRowError, InputError, TokenmillError, UsageError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.inputs.readers import parquet as parquet_reader
from tokenmill.settings import Reading

KINDS = ["parquet", "arrow", "jsonl", "json", "csv", "tsv"]
ROWS: list[dict[str, Any]] = [
    {
        "title": f"Title {i}",
        "text": f"text {i} " * (i % 7 + 1),
        "language": ["de", "en", None, "fr"][i % 4],
        "score": i / 100,
        "year": 1990 + i % 30,
    }
    for i in range(200)
]


def write(kind: str, path: Path, rows: list[dict[str, Any]]) -> Path:
    path = path / f"x.{kind}"
    table = pyarrow.Table.from_pylist(rows)
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=20)
    elif kind == "arrow":
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        with open(path, "w", newline="") as file:
            fields = list(rows[0])
            writer = csv.DictWriter(file, fields, delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(path: Path, reading: Reading) -> list[str]:
    source = find_sources([path], reading.text_column).sources[0]
    found, rows = [], 0
    for segment in segments_of(source, reading):
        for batch in read_segment(source, segment, reading):
            assert batch.row_count == len(batch.rows) + len(batch.bad) + batch.filtered
            rows += batch.row_count
            found += [batch.texts.document(i).decode() for i in range(batch.texts.documents)]
    assert rows == len(ROWS)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("score > 1.5", lambda row: row["score"] > 1.5),
        ("language == 'de'", lambda row: row["language"] == "de"),
        ("language in ('de', 'fr') and score <= 0.5",
         lambda row: row["language"] in ("de", "fr") and row["score"] <= 0.5),
        ("not language == 'en' and year >= 2000",
         lambda row: row["language"] != "en" and row["year"] >= 2000),
        ("title == 'Title 7' or year == 1990",
         lambda row: row["title"] == "Title 7" or row["year"] == 1990),
        ("score > 100", lambda row: False),
    ],
)  # fmt: skip
def test_a_condition_means_the_same_for_all(
    kind: str, where: str, chosen: Any, tmp_path: Path
) -> None:
    path = write(kind, tmp_path, ROWS)
    expected = [row["text"] for row in ROWS if chosen(row)]
    assert read(path, Reading("text", where=where)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_means_the_same_for_all(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, ROWS)
    reading = Reading("text", template=r"{title} ({year})\n\n{text}", where="score < 0.1")
    assert read(path, reading) == [
        f"{row['title']} ({row['year']})\n\n{row['text']}" for row in ROWS if row["score"] < 0.1
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "json"])
def test_null_is_null_and_compares_as_false(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, ROWS)
    nulls = [row["text"] for row in ROWS if row["language"] is None]
    assert read(path, Reading("text", where="language is null")) == nulls
    assert read(path, Reading("text", where="language == 'x' or language != 'de'")) == [
        row["text"] for row in ROWS if row["language"] not in ("de", None)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", quick(["nanogpt", "mds"], "nanogpt"))
def test_rows_that_do_not_match_are_dropped_counted_and_proven(
    kind: str, form: str, tmp_path: Path
) -> None:
    path = write(kind, tmp_path, ROWS)
    options: dict[str, Any] = {
        "where": "score >= 0.5", "text": "{title}: {text}", "val": "0.2", "format": form,
    }  # fmt: skip
    counts = tokenmill.prepare(path, tmp_path / "o", workers=0, **options).manifest.counts
    assert (counts["rows"], counts["documents"], counts["dropped"]) == (200, 150, 50)
    assert counts["filtered"] == 50
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    assert report.complete
    assert tokenmill.prepare(path, tmp_path / "o", workers=0, **options).already_done
    with pytest.raises(TokenmillError, match=r"where: score >= 0\.5 -> score > 0\.5"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, **{**options, "where": "score > 0.5"})
    with pytest.raises(TokenmillError, match="text_template"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, **{**options, "text": "{text}"})


def test_without_them_a_plan_is_as_it_was(tmp_path: Path) -> None:
    path = write("jsonl", tmp_path, ROWS)
    manifest = tokenmill.prepare(path, tmp_path / "o", workers=0).manifest
    assert not {"where", "text_template"} & manifest.plan["settings"].keys()
    assert "filtered" not in manifest.counts
    assert manifest.plan["sources"][0].keys() == {"name", "size", "fingerprint"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"where": "nothing == 1"}, {"text": "{nothing}"}])
def test_an_unknown_column_is_an_error_before_work_begins(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = write(kind, tmp_path, ROWS)
    with pytest.raises(InputError, match=r"no (column|field) 'nothing'") as refused:
        tokenmill.prepare(path, tmp_path / "o", workers=0, **options)
    assert "title" in refused.value.hint
    assert not (tmp_path / "o").exists()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write("jsonl", tmp_path, ROWS)
    text = tmp_path / "x.txt"
    text.write_text("text")
    with pytest.raises(InputError, match="has no columns"):
        tokenmill.prepare(text, tmp_path / "o", workers=0, where="a == 1")
    with pytest.raises(UsageError, match="contradicts"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, text="{text}", text_column="title")
    with pytest.raises(UsageError, match="where='a = 1'"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, where="a = 1")
    nested = tmp_path / "n.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "tags": [["x"]]}), nested)
    with pytest.raises(InputError, match="not one value in each row"):
        tokenmill.prepare(nested, tmp_path / "o", workers=0, where="tags == 'x'")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "json"])
def test_a_row_without_a_field_is_bad_with_its_name(kind: str, tmp_path: Path) -> None:
    rows = [{"title": "a", "text": "x"}, {"title": None, "text": "y"}, {"title": "c", "text": "z"}]
    path = write(kind, tmp_path, rows)
    options: dict[str, Any] = {"text": "{title}{text}", "workers": 0, "val": "none"}
    with pytest.raises(BadRowError, match=r"row 1.*field 'title' is null"):
        tokenmill.prepare(path, tmp_path / "o", **options)
    result = tokenmill.prepare(path, tmp_path / "o", on_bad_row="quarantine", **options)
    assert result.manifest.counts["quarantined"] == 1
    assert quarantined(tmp_path / "o")[0]["row"] == 1
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").ok


def test_row_groups_that_statistics_exclude_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("parquet", tmp_path, ROWS)  # ten row groups; the score grows
    groups: list[int] = []
    leaf_batches = parquet_reader.leaf_batches

    def watched(file: Any, rows: int, wanted: list[int], columns: list[int]) -> Any:
        groups.extend(wanted)
        return leaf_batches(file, rows, wanted, columns)

    monkeypatch.setattr(parquet_reader, "leaf_batches", watched)
    found = read(path, Reading("text", where="score >= 1.75"))
    assert found == [row["text"] for row in ROWS if row["score"] >= 1.75]
    assert groups == [8, 9]


def test_values_of_types_that_python_has_not(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "text": pyarrow.array(["a", "b", "c"]).dictionary_encode(),
            "at": pyarrow.array([10**18, 2 * 10**18, None], pyarrow.timestamp("ns")),
            "size": pyarrow.array([2**64 - 1, 1, 2], pyarrow.uint64()),
            "cost": pyarrow.array([1, 2, 3]).cast(pyarrow.decimal128(22, 2)),
        }
    )
    for kind in ("parquet", "arrow"):
        path = tmp_path / f"t.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            with pyarrow.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        for where, chosen in (
            ("at >= '2033-01-01'", ["b"]),
            (f"size == {2**64 - 1}", ["a"]),
            ("size < 2", ["b"]),
            ("cost >= 2.5", ["c"]),
        ):
            source = find_sources([path], "text").sources[0]
            reading = Reading("text", where=where)
            batches = [
                batch
                for segment in segments_of(source, reading)
                for batch in read_segment(source, segment, reading)
            ]
            texts = [b.texts.document(i).decode() for b in batches for i in range(len(b.rows))]
            assert texts == chosen, (kind, where)


def test_the_command(tmp_path: Path) -> None:
    path = write("csv", tmp_path, ROWS)
    done = command(
        "prepare", path, "-o", tmp_path / "o", "--workers", 0, "--val", "none",
        "--text", r"{title}\n{text}", "--where", "language == 'de' and score > 0.8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows that do not meet --where" in done.stdout
