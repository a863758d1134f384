"""CSV and TSV files: a header, quotes, and line breaks inside quotes.

Rows are parsed by the standard library, strictly: text behind a closing quote, a quote that is
never closed and a row of another length than the header are bad rows, not repaired ones. Memory
holds one batch and one row; a row that does not fit is refused (often a quote that is not closed).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import IO, Any

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.batch import Batch
from tokenmill.inputs.kind import FileFacts, ReadRequest
from tokenmill.inputs.readers.decompress import DAMAGED_HINT, READ_FAULTS, open_stream
from tokenmill.inputs.readers.fields import ambiguous, listed
from tokenmill.inputs.readers.fragments import LONG_BYTES
from tokenmill.inputs.rows.row_files import BatchBuilder, RowFile
from tokenmill.inputs.rows.row_rule import RowRule, columns_read, rule_of
from tokenmill.inputs.rows.template import RowFaultError
from tokenmill.inputs.source import BOM
from tokenmill.system.memory import LINE_FACTOR, READ_FACTOR

LINE_BYTES = 1 << 20  # of a long line read at once
UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Csv(RowFile):
    name = "csv"
    title = "CSV"
    extensions: tuple[str, ...] = (".csv",)
    delimiter = ","

    def check_head(self, path: str, size: int, head: bytes, file: IO[bytes]) -> None:
        super().check_head(path, size, head, file)
        if head.startswith(UTF16):
            raise InputError(
                f"{path}: UTF-16, where UTF-8 should be",
                hint="convert it: iconv -f UTF-16 -t UTF-8 FILE",
            )

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        return self.check_columns(path, mtime_ns, compression, (text_column,))

    def check_columns(
        self, path: str, mtime_ns: int, compression: str, names: tuple[str, ...]
    ) -> FileFacts:
        try:
            with open_stream(path, compression) as stream:
                header = _Rows(stream, self.delimiter).header()
        except READ_FAULTS as error:
            raise InputError(f"{path}: its header cannot be read: {error}") from None
        for name in names:
            if header.count(name) > 1:
                raise ambiguous(path, name)
            if name not in header:
                raise InputError(
                    f"{path}: no column {name!r}",
                    hint=f"columns are: {listed(header)}; choose one with --text-column",
                )
        return FileFacts()

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        source, reading = request.source, request.reading
        builder = BatchBuilder()
        rows: _Rows | None = None
        request.room.leave()
        try:
            with open_stream(source.path, source.compression) as stream:
                rows = _Rows(stream, self.delimiter, request, builder)
                header = rows.header()
                places = {name: header.index(name) for name in columns_read(reading)}
                for values in rows.values():
                    _add_row(builder, rows, values, header, places, reading.text_column, reading)
                    if builder.full and (batch := builder.take(rows.line)):
                        yield batch
                        request.room.leave()
            if batch := builder.take(rows.line):
                yield batch
        except READ_FAULTS as error:
            at = f" (line {rows.line + 1})" if rows else ""
            raise SourceError(
                f"{source.name}: cannot be read after row {builder.row}{at}: {error}",
                hint=DAMAGED_HINT,
            ) from None


class Tsv(Csv):
    name = "tsv"
    title = "TSV"
    extensions = (".tsv", ".tab")
    delimiter = "\t"


CSV, TSV = Csv(), Tsv()


def _add_row(
    builder: BatchBuilder,
    rows: _Rows,
    values: list[str] | csv.Error,
    header: list[str],
    places: dict[str, int],
    text_column: str,
    reading: Any,
) -> None:
    if isinstance(values, csv.Error):
        builder.add_bad(f"not valid CSV: {values}", rows.content, rows.first_line)
        return
    if len(values) != len(header):
        reason = f"has {len(values)} fields, the header has {len(header)}"
        builder.add_bad(reason, rows.content, rows.first_line)
        return
    rule: RowRule | None = rule_of(reading)
    if rule is None:
        text: bytes | None = values[places[text_column]].encode("utf-8", "surrogateescape")
    else:
        fields = {name: _field(values[place]) for name, place in places.items()}
        try:
            text = rule.text(fields)
        except RowFaultError as error:
            builder.add_bad(str(error), rows.content, rows.first_line)
            return
    if text is None:
        builder.skip()
    else:
        builder.add(text, rows.position)


def _field(value: str) -> str | bytes:
    """Text, or the bytes where these are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")
    return value


class _Rows:
    """Rows of a stream, with the place, the lines and the bytes of the row at hand."""

    def __init__(
        self,
        stream: Any,
        delimiter: str,
        request: ReadRequest | None = None,
        builder: BatchBuilder | None = None,
    ) -> None:
        csv.field_size_limit(sys.maxsize)  # the room decides what fits
        self._stream, self._request, self._builder = stream, request, builder
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)
        self._at = 0  # the next byte
        self.line = 0  # the next line
        self.position = self.first_line = 0  # where the row at hand begins
        self._raw: list[bytes] = []
        self._size = 0

    @property
    def content(self) -> bytes:
        return b"".join(self._raw).rstrip(b"\r\n")

    def header(self) -> list[str]:
        for values in self.values():
            if isinstance(values, csv.Error):
                raise ValueError(f"the header is not valid CSV: {values}")
            return values
        return []

    def values(self) -> Iterator[list[str] | csv.Error]:
        """Each row; an error where it is not one. Blank lines are not rows."""
        while True:
            self.position, self.first_line = self._at, self.line
            self._raw, self._size = [], 0
            try:
                values = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield error
                continue
            if values:
                yield values

    def _lines(self) -> Iterator[str]:
        while line := self._stream.readline(LINE_BYTES):
            pieces = [line]
            self._hold(len(line))
            while not line.endswith(b"\n") and (line := self._stream.readline(LINE_BYTES)):
                pieces.append(line)
                self._hold(len(line))
            whole = b"".join(pieces)
            if self._at == 0:
                whole = whole.removeprefix(BOM)
                self._at = len(BOM) * (len(whole) < sum(map(len, pieces)))
            self._at += len(whole)
            self.line += 1
            self._raw.append(whole)
            yield whole.decode("utf-8", "surrogateescape")

    def _hold(self, size: int) -> None:
        """Room for a long row."""
        self._size += size
        request = self._request
        if request is None or self._size <= LONG_BYTES:
            return
        request.alive()
        row = self._builder.row if self._builder else 0
        request.room.take(
            LINE_FACTOR * self._size,
            f"{request.source.name}: row {row} (line {self.first_line + 1})",
            f"it is {self._size:,} bytes or more, which can only be read whole; a quote may be "
            "missing",
            held=READ_FACTOR * self._size,
        )
