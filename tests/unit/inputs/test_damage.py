"""Damage, small and exact: what R8 and R9 of the scorecard found by trying everything."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import token_bytes
from support.damage import dataset  # noqa: F401
from support.inputs import write_jsonl, write_parquet

import tokenmill
from reliability.planted_rows import NO_ROW
from tokenmill.errors import InputError, RefusedError, SourceError, VerificationError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.inputs.readers import parquet
from tokenmill.output.manifest import Manifest
from tokenmill.planning.estimate import make_estimate
from tokenmill.planning.make import make_plan
from tokenmill.planning.options import make_options
from tokenmill.settings import Reading


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_parquet_with_delta_encodings_is_read(
    encoding: str, texts: list[str], tmp_path: Path
) -> None:
    """pyarrow cannot read these as dictionaries, which is how small row groups are read."""
    write_parquet(tmp_path / "plain.parquet", texts)
    write_parquet(
        tmp_path / "delta.parquet",
        texts,
        use_dictionary=False,
        column_encoding={"text": encoding},
        data_page_version="2.0",
    )
    for name in ("plain", "delta"):
        tokenmill.prepare(tmp_path / f"{name}.parquet", tmp_path / name, val="none", workers=0)
    assert token_bytes(tmp_path / "delta") == token_bytes(tmp_path / "plain")


def test_a_damaged_column_of_counts_is_not_used_by_plan(tmp_path: Path) -> None:
    """`prepare` does not read it, so it is no error either."""
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": ["some text"] * 90, "token_count": range(90)})
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pyarrow.parquet.write_table(table, path, **options)
    content = bytearray(path.read_bytes())
    content[content.find((77).to_bytes(8, "little"))] ^= 1
    path.write_bytes(content)
    prepared = make_plan(path, tmp_path / "o", make_options({"workers": 0}))
    assert not make_estimate(prepared, probe_seconds=0.05).tokens_exact
    tokenmill.prepare(path, tmp_path / "o", workers=0)


def test_a_row_group_with_fewer_rows_than_its_footer_counts_is_named(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "x.parquet", texts[:50], rows=20)
    whole = parquet._dictionaries

    def short(file: Any, group: int, text_column: str, parts: tuple[str, ...]) -> Any:
        for column in whole(file, group, text_column, parts):
            yield column.slice(0, len(column) - (group == 1))

    monkeypatch.setattr(parquet, "_dictionaries", short)
    with pytest.raises(SourceError, match=r"row group 1 \(rows 20 to 39\).*it has 19 rows"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)


def test_a_first_line_that_is_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"z": ' + b"[" * 100_000 + b'\n{"text": "a"}\n')
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, on_bad_row="quarantine")
    assert (result.manifest.counts["documents"], result.manifest.counts["quarantined"]) == (1, 1)


def test_a_first_line_that_is_an_array_is_a_bad_row_and_not_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'[1, 2]\n{"text": "a"}\n')
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, on_bad_row="quarantine")
    assert (result.manifest.counts["documents"], result.manifest.counts["quarantined"]) == (1, 1)
    for array in (b'[{"text": "a"}]', b'[\n{"text": "a"},\n{"text": "b"}\n]', b'[{"text": "a"},\n'):
        path.write_bytes(array)
        assert find_sources([path], "text").sources[0].kind == "json"
        with pytest.raises(InputError, match="one JSON array"):
            tokenmill.prepare(path, tmp_path / "p", workers=0, as_kind="jsonl")


ROWS = st.one_of(
    st.text(max_size=8).map(lambda text: json.dumps({"text": text}).encode()),
    st.sampled_from(NO_ROW),
    st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
)


@given(st.lists(ROWS, min_size=1, max_size=12), st.integers(1, 200))
def test_every_line_is_a_text_or_a_bad_row_with_its_bytes(lines: list[bytes], block: int) -> None:
    """Whatever the lines are, and wherever blocks of them end."""
    content = b'{"text": "first"}\n' + b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "BATCH_BYTES", block)
        path = Path(folder) / "x.jsonl"
        path.write_bytes(content)
        source = find_sources([path], "text").sources[0]
        (segment,) = segments_of(source, Reading("text"))
        found: dict[int, bytes] = {}
        for batch in read_segment(source, segment, Reading("text")):
            for index, row in enumerate(batch.rows.tolist()):
                found[row] = json.dumps({"text": batch.texts.document(index).decode()}).encode()
            found.update({bad.row: bad.content for bad in batch.bad})
    expected = [line for line in content.split(b"\n") if line.strip()]
    assert sorted(found) == list(range(len(expected)))
    for row, line in enumerate(expected):
        assert found[row] == line or json.loads(found[row]) == json.loads(line)


def test_what_cannot_be_decompressed_comes_with_a_hint(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl.gz", ["a"])
    for content in (path.read_bytes()[:-4], b"no gzip"):
        path.write_bytes(content)
        with pytest.raises(InputError) as error:
            tokenmill.prepare(path, tmp_path / "o", workers=0)
        assert error.value.hint


@pytest.mark.parametrize("name", ["train.bin", "index/train.ends", "index/train.runs"])
def test_the_loader_says_which_file_is_short_or_gone(name: str, dataset: Path) -> None:
    content = (dataset / name).read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], b"", content + b"\0", None):
        if damaged is None:
            (dataset / name).unlink()
        else:
            (dataset / name).write_bytes(damaged)
        with pytest.raises(VerificationError, match=f"{name}: ") as error:
            read_some(dataset)
        assert "verify" in error.value.hint


def read_some(dataset: Path) -> None:
    split = tokenmill.open_dataset(dataset)["train"]
    split.tokens[:]
    split.documents.source(0)


def test_the_loader_follows_no_index_that_leads_nowhere(dataset: Path) -> None:
    for name in ("index/train.ends", "index/train.runs"):
        content = bytearray((dataset / name).read_bytes())
        content[:24] = b"\xff" * 24
        (dataset / name).write_bytes(content)
    documents = tokenmill.open_dataset(dataset)["train"].documents
    with pytest.raises(VerificationError, match="document 0 ends before it begins"):
        documents[0]
    with pytest.raises(VerificationError, match="document 0 comes from no source"):
        documents.source(0)
    with pytest.raises(VerificationError, match="end before they begin"):
        tokenmill.inspect(dataset)


def test_a_stray_file_that_bears_a_name_of_ours_is_found(dataset: Path) -> None:
    (dataset / "notes.txt").write_text("none of our business")
    (dataset / ".hidden").write_text("nor this")
    assert tokenmill.verify(dataset).ok
    (dataset / "index/more").write_text("x")
    (problem,) = tokenmill.verify(dataset).problems
    assert problem.startswith("index/more: not part of this dataset")


def test_a_stray_quarantine_is_found(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["a", "b"])
    tokenmill.prepare(path, tmp_path / "o", workers=0, val="none")
    (tmp_path / "o/quarantine.jsonl").write_text("")
    (problem,) = tokenmill.verify(tmp_path / "o").problems
    assert problem.startswith("quarantine.jsonl: ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'"sources"',
        b'{"sources": []}',
        b'{"sources": {"a.jsonl": 1}}',
        b'{"sources": {"a.jsonl": {"mtime_ns": "soon"}}}',
        b'{"finished": [1], "tokenizer": {}, "sources": "\xff"}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)
def test_whatever_is_in_run_json_stops_nothing(
    content: bytes, dataset: Path, tmp_path: Path
) -> None:
    (dataset / "run.json").write_bytes(content)
    assert tokenmill.verify(dataset).ok
    assert tokenmill.inspect(dataset).counts["quarantined"] == 1
    assert tokenmill.inspect_document(dataset, document=0).source == "a.jsonl"
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    again = tokenmill.prepare(inputs, dataset, workers=0, val=0.2, on_bad_row="quarantine")
    assert again.already_done


def test_a_damaged_plan_of_an_unfinished_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a"}\n{oops\n')
    with pytest.raises(tokenmill.TokenmillError, match="row 1"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)
    plan = tmp_path / "o/.tokenmill/plan.json"
    stored = json.loads(plan.read_bytes())
    damaged = [b"", b"{", b"[]", b"{}", b'{"plan": "\xff"}', b'{"plan": {}, "mtimes": {}}']
    del stored["plan"]["settings"]
    for content in (*damaged, json.dumps(stored).encode()):
        plan.write_bytes(content)
        with pytest.raises(RefusedError, match="damaged"):
            tokenmill.prepare(path, tmp_path / "o", workers=0)
    result = tokenmill.prepare(
        path, tmp_path / "o", workers=0, overwrite=True, on_bad_row="quarantine"
    )
    assert result.manifest.counts["quarantined"] == 1


def test_a_manifest_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(VerificationError, match=r"manifest.json: cannot be read"):
        Manifest.load(tmp_path)
