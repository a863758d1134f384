"""Where each row of a source went: the documents of a shuffled stream by source and row.

`STREAM.runs` leads from a document to its row. `STREAM.rows` is the way back: the numbers of all
documents, sorted by source and row; so a row is found by halving.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tokenmill.output.stored import FileStream
from tokenmill.system.disk import Buffer
from tokenmill.system.spill import SpillFolder
from tokenmill.system.store import read_range
from tokenmill.texts import I64
from tokenmill.tokens.counts import Counts

BLOCK_DOCUMENTS = 1 << 20
BUCKET_ROWS = 4 << 20  # rows of the sources that are sorted at a time
PAIR = np.dtype([("row", "<u8"), ("document", "<u8")])


def _origins(stream: FileStream) -> Iterator[tuple[int, I64, I64]]:
    """First document, sources and rows, some documents at a time."""
    name = stream.about.runs
    for first in range(0, stream.documents, BLOCK_DOCUMENTS):
        count = min(BLOCK_DOCUMENTS, stream.documents - first)
        content = read_range(stream.store, name, first * 24, count * 24)
        runs = np.frombuffer(content, "<u8").reshape(-1, 3).astype(np.int64)
        yield first, runs[:, 1], runs[:, 2]


def row_index(stream: FileStream, rows: Sequence[int], spill: SpillFolder) -> Iterator[Buffer]:
    """The numbers of all documents by source and row; `rows`: of each source.

    Sorted in two steps: into files by ranges of rows, then each of these in memory.
    """
    bases = np.concatenate(([0], np.cumsum(np.array(rows, np.int64))))
    buckets = max(1, -(-int(bases[-1]) // BUCKET_ROWS))
    sizes = np.zeros(buckets, np.int64)
    for first, sources, numbers in _origins(stream):
        pairs = np.empty(len(numbers), PAIR)
        pairs["row"] = bases[sources] + numbers
        pairs["document"] = np.arange(first, first + len(numbers))
        bucket = pairs["row"] // BUCKET_ROWS
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(buckets + 1))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            part = pairs[order[bounds[number] : bounds[number + 1]]]
            spill.write_at(_name(stream, number), int(sizes[number]), part.view("u1"))
            sizes[number] += part.nbytes
    for number in np.flatnonzero(sizes).tolist():
        content = read_range(spill, _name(stream, number), 0, int(sizes[number]))
        pairs = np.frombuffer(content, PAIR)
        yield pairs["document"][np.argsort(pairs["row"], kind="stable")].astype("<u8")
        spill.forget(_name(stream, number))


def _name(stream: FileStream, bucket: int) -> str:
    return f"rows-{stream.name}-{bucket:06d}"


def chosen_of(by_source: Sequence[Counts], streams: Sequence[FileStream]) -> list[Counts]:
    """The counts of each source, where a limit has left a part of its documents."""
    documents, tokens = (np.zeros(len(by_source), np.int64) for _ in range(2))
    for stream in streams:
        before = 0
        for first, sources, _ in _origins(stream):
            ends = stream.ends_of(first, first + len(sources))
            np.add.at(documents, sources, 1)
            np.add.at(tokens, sources, np.diff(ends, prepend=before))
            before = int(ends[-1])
    chosen: list[Counts] = []
    for number, counts in enumerate(by_source):
        left = Counts()
        left.add(counts)
        left.not_chosen = counts.documents - int(documents[number])
        left.documents, left.tokens = int(documents[number]), int(tokens[number])
        chosen.append(left)
    return chosen
