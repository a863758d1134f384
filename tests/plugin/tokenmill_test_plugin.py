"""Rows with bars between their fields, and a format of bare 32-bit ids: how to add either."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator

import numpy as np

from tokenmill.errors import InputError
from tokenmill.formats.base import Format
from tokenmill.inputs.batch import BadRow, Batch
from tokenmill.inputs.kind import FileFacts, InputKind, ReadRequest
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Layout, PlanSettings, Reading
from tokenmill.texts import from_bytes

ROWS = 1000


class Psv(InputKind):
    """A file is one segment: a row may hold line ends, so that only reading tells where it ends."""

    name = "psv"
    title = "PSV"
    extensions = (".psv",)
    typical = (0.95, 0.21)
    may_be_compressed = False
    numbers_rows = True
    parts = "rows"

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        with open(path, newline="", encoding="utf-8") as file:
            names = next(csv.reader(file, delimiter="|"), [])
        if text_column not in names:
            raise InputError(
                f"{path}: no column {text_column!r}",
                hint=f"columns are: {', '.join(names)}; choose one with --text-column",
            )
        return FileFacts()

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        yield Segment(source.number, 0, 0, source.size, source.size)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        column = request.reading.text_column
        with open(request.source.path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file, delimiter="|")
            for first in itertools.count(0, ROWS):
                texts = [row[column] for row in itertools.islice(rows, ROWS)]
                if not texts:
                    return
                good = [i for i, text in enumerate(texts) if text is not None]
                bad = [
                    BadRow(first + i, -1, "the row is too short", b"")
                    for i, text in enumerate(texts)
                    if text is None
                ]
                numbers = np.array(good, np.int64) + first
                batch = from_bytes(texts[i].encode() for i in good)
                yield Batch(batch, numbers, numbers, bad, first, len(texts), 0)

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        return f"row {bad.row}"


PSV = Psv()


def _load_lines(settings: PlanSettings, layout: Layout, directory: str, file: str) -> list[str]:
    return ["import numpy as np", f"ids = np.fromfile({directory + '/' + file!r}, np.uint32)"]


IDS32 = Format(
    name="ids32",
    trainer="nobody's",
    files="`train.ids32`, `val.ids32`",
    eot="append",
    cut="exact",
    val="none",
    sharded=False,
    named=False,
    dtype=lambda vocab_size: "uint32",
    file_name=lambda layout, split, number, of: f"{split}.ids32",
    trainer_glob=lambda layout: ("*.ids32",),
    load_lines=_load_lines,
)
