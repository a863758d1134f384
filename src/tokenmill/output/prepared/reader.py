"""The documents of a prepared dataset in batches, as readers of files give them.

The bytes of a batch are ids of four bytes each. Every byte that is read is compared with the
manifest of the dataset first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from tokenmill.inputs.batch import BadRow, Batch, FatalRows, Fragment, set_aside
from tokenmill.inputs.kind import ReadRequest
from tokenmill.inputs.readers.fragments import LONG_BYTES, bad_batch, empty_batch
from tokenmill.inputs.rows.prepared import ID_BYTES
from tokenmill.inputs.segments import BATCH_BYTES
from tokenmill.inputs.source import Source
from tokenmill.output.manifest import Manifest
from tokenmill.output.prepared.checked_store import CheckedStore
from tokenmill.output.prepared.documents import ENDS_AT_ONCE, DocumentStream, trained_on
from tokenmill.texts import I64, Texts, offsets_of, runs
from tokenmill.tokenizer.encoders.fast import U32

OPENED = 8  # datasets that a process keeps open
FINGERPRINT = "dataset:"  # before the checksum of a manifest
READ_FACTOR = 6  # memory for a document that may not be cut, beside its ids
# What an error says where the dataset was changed.
TOLD = (
    "it cannot be an input",
    "make the dataset again, or restore it; what is done already is kept",
)


def checked_store(path: str, manifest: Manifest) -> CheckedStore:
    return CheckedStore(path, manifest, *TOLD)


@functools.lru_cache(OPENED)
def _opened(path: str, fingerprint: str) -> tuple[DocumentStream, int]:
    """The stream that holds the documents of the training split, and the first of them."""
    manifest = Manifest.load(path)
    store = checked_store(path, manifest)
    if FINGERPRINT + manifest.checksum != fingerprint:
        raise store.damaged("", "was changed since this job was begun")
    found = trained_on(manifest, store)
    return DocumentStream(store, found.stream), found.first


def document_lengths(source: Source) -> Iterator[I64]:
    """How many ids the text of each row has, some rows at a time."""
    stream, first = _opened(source.path, source.fingerprint)
    for start in range(0, source.rows, ENDS_AT_ONCE):
        stop = min(start + ENDS_AT_ONCE, source.rows)
        yield np.diff(stream.bounds(first + start, first + stop)) - stream.frame


def ids_of(texts: Texts) -> tuple[U32, I64]:
    """The ids of a batch of documents, and where each document begins."""
    ids = np.ascontiguousarray(texts.used()).view(np.uint32)
    return ids, (texts.offsets - texts.offsets[0]) // ID_BYTES


def read_prepared(request: ReadRequest) -> Iterator[Batch]:
    """The documents of a segment in order; those of the rows in `aside` among the bad rows."""
    source, segment = request.source, request.segment
    stream, first = _opened(source.path, source.fingerprint)
    for start in range(segment.start, segment.stop, ENDS_AT_ONCE):
        request.alive()
        bounds = stream.bounds(first + start, first + min(start + ENDS_AT_ONCE, segment.stop))
        for low, high in runs(ID_BYTES * bounds, BATCH_BYTES):
            size = ID_BYTES * int(bounds[high] - bounds[low])
            if size <= LONG_BYTES:
                batch = _batch(stream, bounds[low : high + 1], start + low)
                yield set_aside(batch, request.aside)
            elif request.reading.may_cut:
                yield from _in_parts(stream, bounds[low : low + 2], start + low, request.aside)
            else:
                _take_room(request, start + low, size)
                batch = _batch(stream, bounds[low : high + 1], start + low)
                yield set_aside(batch, request.aside)


def _batch(stream: DocumentStream, bounds: I64, row: int) -> Batch:
    ids, lengths = stream.texts(bounds)
    rows = np.arange(row, row + len(lengths), dtype=np.int64)
    texts = Texts(ids.view(np.uint8), offsets_of(lengths * ID_BYTES))
    return Batch(texts, rows, rows, [], row, len(rows), 0)


def _in_parts(stream: DocumentStream, bounds: I64, row: int, aside: FatalRows) -> Iterator[Batch]:
    """One long document: its ids some at a time. One that is quarantined because it ends its
    worker is passed over in the same parts, so that units are cut as before."""
    begin, end = bounds.tolist()
    left = end - begin - stream.frame
    rows, is_first = np.array([row], np.int64), True
    for ids in stream.parts(begin, end, BATCH_BYTES // ID_BYTES):
        left -= len(ids)
        if row in aside:
            empty = empty_batch(row + 1)
            if is_first:
                empty = bad_batch(BadRow(row, -1, aside[row], ids.tobytes(), fatal=True))
            yield empty._replace(stands_for=ids.nbytes)
        else:
            texts = Texts(ids.view(np.uint8), offsets_of(np.array([ids.nbytes], np.int64)))
            yield Batch(texts, rows, rows, [], row, int(not left), 0, Fragment(is_first, not left))
        is_first = False


def _take_room(request: ReadRequest, row: int, size: int) -> None:
    where = f"{request.source.name}: document {row} of its training split"
    what = f"{size:,} bytes of ids, which are held whole"
    request.room.take(READ_FACTOR * size, where, what, held=READ_FACTOR * size)
