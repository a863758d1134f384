"""The rows that a run quarantined, readable: quarantine.jsonl holds their bytes in base64."""

from __future__ import annotations

import base64
import binascii
import itertools

import msgspec

from tokenmill.dataset.loader import open_dataset
from tokenmill.dataset.views import damaged
from tokenmill.output.commit import QUARANTINE
from tokenmill.system.store import Place, lines


class QuarantinedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it stands in its source, and why it was not encoded."""

    source: str
    row: int  # counted from 0
    line: int = -1  # of a text file, counted from 1; -1: there are no lines
    rows: int = 1  # more: a range that cannot be read
    part: str = ""  # of the file, that this range is in
    reason: str
    text: str  # bytes that are not UTF-8 are shown as \xNN
    length: int  # bytes; more than `text` holds where a long row was cut
    sha256: str = ""  # of the whole row, where it was cut

    @property
    def last(self) -> int:
        return self.row + self.rows - 1


class QuarantineReport(msgspec.Struct, frozen=True, kw_only=True):
    """`total`: rows that were quarantined, those of ranges included."""

    path: str
    total: int
    rows: list[QuarantinedRow]
    more: bool = False  # there are records after `rows`


class _Record(msgspec.Struct):
    source: str
    row: int
    reason: str
    bytes: str
    length: int
    line: int = -1
    rows: int = 1
    part: str = ""
    sha256: str = ""


def inspect_quarantine(directory: Place, *, limit: int | None = None) -> QuarantineReport:
    """The quarantined rows of a dataset, the first `limit` records of them."""
    dataset = open_dataset(directory)
    path, total = dataset.store.where(QUARANTINE), dataset.manifest.counts["quarantined"]
    if not any(entry.kind == "quarantine" for entry in dataset.manifest.files):
        return QuarantineReport(path="", total=total, rows=[])
    dataset.check_size(QUARANTINE)
    decode = msgspec.json.Decoder(_Record).decode
    records = lines(dataset.store, QUARANTINE)
    try:
        rows = [_readable(decode(line)) for line in itertools.islice(records, limit)]
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
        raise damaged(path, f"cannot be read: {error}") from None
    more = next(iter(records), None) is not None
    return QuarantineReport(path=str(path), total=total, rows=rows, more=more)


def _readable(record: _Record) -> QuarantinedRow:
    fields = msgspec.structs.asdict(record)
    content = base64.b64decode(fields.pop("bytes"), validate=True)
    return QuarantinedRow(**fields, text=content.decode("utf-8", "backslashreplace"))
