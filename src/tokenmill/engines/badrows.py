"""A bad row to words: the error that names it, or its line in quarantine.jsonl."""

from __future__ import annotations

import base64

import msgspec
import numpy as np

from tokenmill.arrow_ipc import layout_of
from tokenmill.batch import BadRow
from tokenmill.config import Reading
from tokenmill.errors import BadRowError, TokenmillError, WorkerError
from tokenmill.json_lines import lines_before
from tokenmill.manifest import State
from tokenmill.plan import Segment
from tokenmill.sources import Source, open_parquet
from tokenmill.text_files import documents_before


def bad_row_error(
    source: Source, segment: Segment, bad: BadRow, reading: Reading
) -> TokenmillError:
    """Where the row is in its file, also when the reader began in the middle of it."""
    if source.kind == "parquet":
        with open_parquet(source.path) as file:
            sizes = [file.metadata.row_group(i).num_rows for i in range(segment.stop)]
        group = int(np.searchsorted(np.cumsum(sizes), bad.row, side="right"))
        where = f"row {bad.row} (row group {group})"
    elif source.kind == "arrow":
        starts = layout_of(source.path, source.mtime_ns).starts
        batch = int(np.searchsorted(starts, bad.row, side="right")) - 1
        where = f"row {bad.row} (record batch {batch})"
    elif source.kind == "text":
        where = f"document {bad.row + documents_before(source, segment, reading)}"
    else:
        rows, lines = lines_before(source, segment.start) if segment.start else (0, 0)
        where = f"row {bad.row + rows} (line {bad.line + lines + 1})"
    kind = WorkerError if bad.fatal else BadRowError
    return kind(
        f"{source.name}: {where}: {bad.reason}",
        hint="run the same command with --on-bad-row quarantine to set such rows aside and go on",
    )


def quarantine_line(bad: BadRow, before: State, source: str) -> bytes:
    record: dict[str, object] = {"source": source, "row": before.rows + bad.row}
    if bad.line >= 0:
        record["line"] = before.lines + bad.line + 1
    record["reason"] = bad.reason
    record["bytes"] = base64.b64encode(bad.content).decode()
    record["length"] = len(bad.content) if bad.length < 0 else bad.length
    if bad.sha256:
        record["sha256"] = bad.sha256
    return msgspec.json.encode(record) + b"\n"
