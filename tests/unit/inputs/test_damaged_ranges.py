"""What cannot be read of a parquet or Arrow file is quarantined as a range, and counted."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from support.bisect import quarantined
from support.commands import command
from support.inputs import write_jsonl

import tokenmill
from tokenmill.errors import SourceError
from tokenmill.inputs.readers.arrow_ipc import layout_of

TEXTS = [f"document {i} " * (i % 7 + 1) for i in range(200)]
OPTIONS: dict[str, Any] = {"workers": 0, "val": "0.1", "on_bad_row": "quarantine"}


def damaged_parquet(path: Path, groups: tuple[int, ...], **options: Any) -> Path:
    table = pyarrow.table({"text": TEXTS, "score": [i / 100 for i in range(200)]})
    pyarrow.parquet.write_table(
        table, path, row_group_size=20, write_page_checksum=True, use_dictionary=False, **options
    )
    content = bytearray(path.read_bytes())
    metadata = pyarrow.parquet.read_metadata(path)
    for group in groups:
        chunk = metadata.row_group(group).column(0)
        content[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 0xFF
    path.write_bytes(content)
    return path


def damaged_arrow(path: Path, batches: tuple[int, ...]) -> Path:
    table = pyarrow.table({"text": TEXTS})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=20)
    content = bytearray(path.read_bytes())
    for number in batches:
        block = layout_of(str(path), 0).blocks[number]
        content[block.stop - 60 : block.stop - 20] = b"\xff" * 40
    path.write_bytes(content)
    layout_of.cache_clear()
    return path


def ranges(result: Any) -> list[tuple[str, int, int]]:
    return [(one["part"], one["row"], one["rows"]) for one in result.manifest.set_aside]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("parts", [(3,), (0, 9), (4, 5)])
def test_damaged_parts_are_ranges_in_the_manifest(
    kind: str, parts: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / f"x.{kind}"
    word = "row group" if kind == "parquet" else "record batch"
    damaged_parquet(path, parts) if kind == "parquet" else damaged_arrow(path, parts)
    with pytest.raises(SourceError, match=f"{word} {parts[0]}") as refused:
        tokenmill.prepare(path, tmp_path / "o", **{**OPTIONS, "on_bad_row": "stop"})
    assert "on_bad_row='quarantine'" in refused.value.hint
    result = tokenmill.prepare(path, tmp_path / "o", **OPTIONS)
    assert ranges(result) == [(f"{word} {part}", part * 20, 20) for part in parts]
    counts = result.manifest.counts
    assert (counts["rows"], counts["quarantined"]) == (200, 20 * len(parts))
    assert counts["documents"] == 200 - 20 * len(parts)
    lines = quarantined(tmp_path / "o")
    assert [(one["row"], one["rows"], one["part"]) for one in lines] == [
        (part * 20, 20, f"{word} {part}") for part in parts
    ]
    assert [line for line in result.warnings if "could not be read" in line]
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    assert report.complete
    # the good rows are those of the same texts without the others, whoever encodes them
    again = tokenmill.prepare(path, tmp_path / "again", **OPTIONS)
    assert again.manifest.checksum == result.manifest.checksum


def test_a_filter_and_a_range(tmp_path: Path) -> None:
    path = damaged_parquet(tmp_path / "x.parquet", (3, 8))
    result = tokenmill.prepare(path, tmp_path / "o", where="score < 1", **OPTIONS)
    assert ranges(result) == [("row group 3", 60, 20)]  # the other one is not even read
    counts = result.manifest.counts
    assert (counts["documents"], counts["dropped"], counts["quarantined"]) == (80, 100, 20)
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").ok


def test_the_command_says_so_and_a_trial_does_not_mind(tmp_path: Path) -> None:
    path = damaged_parquet(tmp_path / "x.parquet", (3,))
    options = ("--workers", 0, "--val", "none", "--on-bad-row", "quarantine")
    done = command("prepare", path, "-o", tmp_path / "o", *options)
    assert done.returncode == 4, done.stderr
    assert "20 of the quarantined rows could not be read" in done.stdout
    result = tokenmill.prepare(path, tmp_path / "t", **{**OPTIONS, "limit_docs": 70})
    assert result.manifest.counts["documents"] == 70
    assert result.manifest.counts["rows"] == 90


def test_a_compressed_stream_stays_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    texts = [random.Random(i).randbytes(500).hex() for i in range(2000)]
    packed = gzip.compress(write_jsonl(tmp_path / "x.jsonl", texts).read_bytes())
    path.write_bytes(packed[:-50])
    with pytest.raises(SourceError) as refused:
        tokenmill.prepare(path, tmp_path / "o", **OPTIONS)
    assert "cannot be quarantined" in refused.value.hint
