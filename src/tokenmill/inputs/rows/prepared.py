"""A prepared dataset as an input: a row is a document of its training split, and holds ids.

Only a mixture has such inputs (`dataset:DIR`). Nothing of them is encoded again. The ids are read
by `output/prepared`, which knows manifests and formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, NoReturn

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.batch import BadRow, Batch
from tokenmill.inputs.kind import InputKind, ReadRequest
from tokenmill.inputs.segments import SEGMENT_BYTES, Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.buckets.address import is_bucket

ID_BYTES = 4  # of an id while it is read: `size` of a source counts so
MANIFEST_NAME = "manifest.json"


class PreparedDataset(InputKind):
    """The folder of a finished dataset. `size` of its source: ID_BYTES for each id of a text."""

    name = "dataset"
    title = "a prepared dataset"
    extensions = ()
    typical = (1.0, 1 / ID_BYTES)
    may_be_compressed = False
    cuts_documents = True  # ids can be cut anywhere
    numbers_rows = True
    holds_ids = True
    parts = "documents"

    def check_head(self, path: str, size: int, head: bytes, file: IO[bytes]) -> None:
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise InputError(
            f"{path}: a file is not a prepared dataset",
            hint='name a dataset in a mix.toml: inputs = ["dataset:DIR"]',
        )

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        """Equal numbers of documents: the size of a dataset and of its ids decide how many."""
        count = max(1, source.size // SEGMENT_BYTES)
        step = max(1, -(-source.rows // count))
        for number, start in enumerate(range(0, source.rows, step)):
            stop = min(source.rows, start + step)
            begin, end = (source.size * row // source.rows for row in (start, stop))
            yield Segment(source.number, number, start, stop, end - begin)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        self._refuse(request.source.name)

    def refuse_changed(self, source: Source) -> None:
        """Its files are compared with its manifest wherever they are read."""
        if is_bucket(source.path):  # its manifest is compared when a process opens it
            return
        try:
            found = os.stat(os.path.join(source.path, MANIFEST_NAME)).st_mtime_ns
        except OSError as error:
            raise SourceError(f"{source.name}: cannot be read any more: {error.strerror}") from None
        if found != source.mtime_ns:
            raise SourceError(
                f"{source.name}: its manifest changed while the dataset was being read",
                hint="start again with the dataset as it should be",
            )

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        return f"document {bad.row} of its training split"


PREPARED = PreparedDataset()
