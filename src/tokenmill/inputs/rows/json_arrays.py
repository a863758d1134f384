"""Files that are one JSON array: `[{"text": ...}, ...]`, read element by element.

The end of an element is found by its brackets, with strings skipped; so one element and one block
are in memory, and an element that is not valid JSON is a bad row like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.batch import Batch
from tokenmill.inputs.kind import FileFacts, ReadRequest
from tokenmill.inputs.readers.decompress import DAMAGED_HINT, READ_FAULTS, open_stream
from tokenmill.inputs.readers.fields import (
    DECODE_ERRORS,
    check_fields,
    decoded,
    row_decoder,
    row_fault,
)
from tokenmill.inputs.readers.fragments import LONG_BYTES
from tokenmill.inputs.rows.row_files import BatchBuilder, RowFile
from tokenmill.inputs.segments import BATCH_BYTES
from tokenmill.inputs.source import BOM
from tokenmill.system.memory import LINE_FACTOR, READ_FACTOR

LOOKED_AT = 100  # elements, for the names of fields
PEEK_BYTES = 1 << 20
# Strings whole, else brackets and commas; a quote alone is a string that goes on.
_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},"]', re.DOTALL)
_SPACE = b" \t\r\n"


class JsonArray(RowFile):
    name = "json"
    title = "a JSON array"
    extensions = ()  # known by its first letter, see `JsonLines.settled`

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        return self.check_columns(path, mtime_ns, compression, (text_column,))

    def check_columns(
        self, path: str, mtime_ns: int, compression: str, names: tuple[str, ...]
    ) -> FileFacts:
        rows: list[Any] = []
        try:
            with open_stream(path, compression) as stream:
                for element, _ in elements(stream, most=PEEK_BYTES):
                    rows.append(decoded(element))
                    if len(rows) >= LOOKED_AT:
                        break
        except READ_FAULTS as error:
            if not rows:
                raise InputError(
                    f"{path}: not a JSON array: {error}",
                    hint="the file is damaged or cut short: download or write it again",
                ) from None
        check_fields(path, rows, names)
        return FileFacts()

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        source, reading = request.source, request.reading
        builder, decode = BatchBuilder(), row_decoder(reading)
        request.room.leave()
        try:
            with open_stream(source.path, source.compression) as stream:
                for element, position in elements(stream, request, builder):
                    try:
                        text = decode(element)
                        builder.skip() if text is None else builder.add(text, position)
                    except DECODE_ERRORS as error:
                        builder.add_bad(row_fault(error, element, reading.text_column), element)
                    if builder.full and (batch := builder.take()):
                        yield batch
                        request.room.leave()
            if batch := builder.take():
                yield batch
        except READ_FAULTS as error:
            raise SourceError(
                f"{source.name}: cannot be read after row {builder.row}: {error}",
                hint=DAMAGED_HINT,
            ) from None


JSON_ARRAY = JsonArray()


def elements(
    stream: Any,
    request: ReadRequest | None = None,
    builder: BatchBuilder | None = None,
    most: int = 0,
) -> Iterator[tuple[bytes, int]]:
    """The elements of an array, with their places; ValueError where it is not one."""
    data, base = stream.read(BATCH_BYTES), 0  # `base`: the place of its first byte
    at = len(BOM) if data.startswith(BOM) else 0
    at += len(data[at:]) - len(data[at:].lstrip(_SPACE))
    if data[at : at + 1] != b"[":
        raise ValueError("it does not begin with [")
    start = at = at + 1
    depth, first, ended = 0, True, False
    while not ended:
        for mark in _MARK.finditer(data, at):
            sign = mark[0]
            if sign == b'"':
                break  # the end of this string is not here yet
            at = mark.end()
            if sign in (b"[", b"{"):
                depth += 1
            elif depth and sign in (b"]", b"}"):
                depth -= 1
            elif not depth and sign in (b"]", b","):
                element = data[start : mark.start()].strip(_SPACE)
                ended = sign == b"]"
                if not element and not (first and ended):
                    raise ValueError(
                        f"nothing is before the {sign.decode()!r} at byte {base + mark.start()}"
                    )
                if element:
                    lead = len(data[start : mark.start()]) - len(
                        data[start : mark.start()].lstrip(_SPACE)
                    )
                    yield element, base + start + lead
                start, first = at, False
                if ended:
                    break
        if ended:
            break
        data, base, at, start = data[start:], base + start, at - start, 0
        if most and len(data) > most:
            return
        _hold(len(data), request, builder)
        more = stream.read(max(BATCH_BYTES, len(data)))  # doubled: no string is searched often
        if not more:
            raise EOFError(f"it ends at byte {base + len(data)}, before the closing ]")
        data += more
    rest = data[at:]
    while rest:
        if rest.strip(_SPACE):
            raise ValueError("something follows the closing ]")
        rest = stream.read(BATCH_BYTES)


def _hold(size: int, request: ReadRequest | None, builder: BatchBuilder | None) -> None:
    """Room for a long element."""
    if request is None or size <= LONG_BYTES:
        return
    request.alive()
    request.room.take(
        LINE_FACTOR * size,
        f"{request.source.name}: row {builder.row if builder else 0}",
        f"it is {size:,} bytes or more, which can only be decoded whole",
        held=READ_FACTOR * size,
    )
