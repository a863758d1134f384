"""Rows that are missing, too many, or quarantined wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenmill.dataset.deep.origins import Problem
from tokenmill.dataset.streams import Stream
from tokenmill.inputs.batch import Batch
from tokenmill.texts import I64


def quarantine_problems(name: str, batch: Batch, listed: I64) -> Iterator[Problem]:
    """The rows that are not text must be those that quarantine.jsonl names."""
    low, high = np.searchsorted(listed, [batch.first_row, batch.first_row + batch.row_count])
    bad = {one.row + i for one in batch.bad for i in range(one.rows)}
    for row in sorted(bad ^ set(listed[low:high].tolist()))[:1]:
        what = (
            "is not text, but quarantine.jsonl does not name it"
            if row in bad
            else "is named by quarantine.jsonl, but can be read"
        )
        yield Problem(f"{name}: row {row} {what}", "quarantine", name, row)


def row_problems(
    name: str, stream: Stream, documents: I64, stored: I64, expected: I64
) -> Iterator[Problem]:
    """Rows as they are stored in `documents`, and as expected: the first of each kind."""
    whose = "" if stream.name == "all" else f" of {stream.name}"
    for row in np.setdiff1d(expected, stored)[:1].tolist():
        message = f"{name}: row {row} should be a document{whose}, and is not there"
        yield Problem(message, "row", name, row)
    for row in np.setdiff1d(stored, expected)[:1].tolist():
        document = int(documents[np.searchsorted(stored, row)])
        split, number, _ = stream.number_in_split(document, stream.span(document)[0])
        message = (
            f"{split} document {number}: comes from {name}, row {row}, says the index; "
            f"that row is not a document{whose}"
        )
        yield Problem(message, "row", name, row, split, number)
