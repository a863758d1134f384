"""A segment read again for comparison: cut documents put together, limits of the plan kept."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.batch import Batch
from tokenmill.config import PlanSettings
from tokenmill.documents import read_segment
from tokenmill.plan import Segment
from tokenmill.sources import Source
from tokenmill.text_files import long_document
from tokenmill.texts import from_bytes


def read_again(
    source: Source, segment: Segment, settings: PlanSettings, rows: int
) -> Iterator[Batch]:
    """Whole documents only; under a limit no more than the rows that were taken."""
    done = 0
    for batch in _whole(source, segment, settings):
        if settings.limited:
            if done >= rows:
                return
            batch = batch.until(batch.first_row + rows - done)  # noqa: PLW2901
        done += batch.row_count
        yield batch


def _whole(source: Source, segment: Segment, settings: PlanSettings) -> Iterator[Batch]:
    pieces: list[bytes] | None = None  # of a document whose beginning was read here
    for batch in read_segment(source, segment, settings.reading, whole=True):
        if batch.fragment is None:
            yield batch
            continue
        if batch.fragment.first:
            pieces = []
        if pieces is not None:
            pieces.append(batch.texts.document(0))
        if batch.fragment.last:
            text = (
                b"".join(pieces)
                if pieces is not None
                else long_document(source, segment, settings.reading, int(batch.positions[0]))
            )
            yield batch._replace(texts=from_bytes([text]), fragment=None)
            pieces = None
