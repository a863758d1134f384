"""Are the documents of an `export --shuffle` in the order of its keys?

The index has the number that each document had in the dataset that was shuffled. The keys are made
of these numbers, so they need no source. Whether the numbers are true, the sources tell: a dataset
that was not shuffled before had its documents in the order of their sources and rows; otherwise
they were in the order of other keys (`key_order.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenmill.dataset.order.new_order import split_parts
from tokenmill.dataset.streams import BLOCK, Stream
from tokenmill.tokens.order import export_keys


def export_order_faults(number: int, stream: Stream) -> Iterator[str]:
    """Where numbers and keys contradict the order; `number` is that of the stream."""
    reshuffle = stream.settings.reshuffle
    if reshuffle is None or not stream.documents:
        return
    table = f"index/{stream.name}.numbers"
    if (entries := stream.entries("numbers")) != stream.documents:
        yield f"{table}: {entries} entries for {stream.documents} documents"
        return
    for part in split_parts(number, stream):
        last = -1
        for first in range(part.first, part.stop, BLOCK):
            numbers = stream.numbers(first, min(first + BLOCK, part.stop))
            keys = export_keys(reshuffle.seed, reshuffle.of, number, numbers)
            if int(keys[0]) <= last or (keys[1:] <= keys[:-1]).any():
                yield f"{table}: the keys of documents are not in order behind {first}"
                return
            last = int(keys[-1])
            if not stream.settings.only and int(numbers.max()) >= stream.documents:
                yield f"{table}: names document {int(numbers.max())} of {stream.documents}"
                return
    if stream.settings.by_key:
        return
    last = -1
    for first in range(0, stream.documents, BLOCK):
        numbers = stream.numbers_by_row(first, min(first + BLOCK, stream.documents))
        if int(numbers[0]) <= last or (np.diff(numbers) <= 0).any():
            yield f"{table}: numbers are not in the order of sources and rows"
            return
        last = int(numbers[-1])
