"""The input kinds, as `formats/` has the trainers' formats: which files are read, and how.

Another package adds a kind by an entry point of the group `tokenmill.inputs` that names an
`InputKind`. It is looked for only when a name or an extension is not one of ours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tokenmill.errors import InputError, SourceError, UsageError
from tokenmill.inputs.batch import Batch, FatalRows, SignOfLife, nobody_watches, set_aside
from tokenmill.inputs.kind import InputKind, ReadRequest
from tokenmill.inputs.readers.arrow import ARROW
from tokenmill.inputs.readers.fragments import in_fragments
from tokenmill.inputs.readers.jsonl import JSONL
from tokenmill.inputs.readers.parquet import PARQUET
from tokenmill.inputs.readers.text import TEXT
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.memory import NO_LIMIT, MemoryShare
from tokenmill.system.plugins import added

BUILT_IN: tuple[InputKind, ...] = (PARQUET, ARROW, JSONL, TEXT)
COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
INPUTS_GROUP = "tokenmill.inputs"


def _all_kinds() -> Iterator[InputKind]:
    """Ours first: most callers stop there, and nobody looks for packages."""
    yield from BUILT_IN
    yield from added(INPUTS_GROUP, InputKind)


def extension_names() -> tuple[str, ...]:
    """Ends of file names that are read; a package that is broken adds none."""
    kinds = list(BUILT_IN)
    with contextlib.suppress(UsageError):
        kinds += added(INPUTS_GROUP, InputKind)
    return (*(e for kind in kinds for e in kind.extensions), *COMPRESSIONS)


def kind_named(name: str) -> InputKind:
    """The kind that a source is of."""
    for kind in _all_kinds():
        if kind.name == name:
            return kind
    raise InputError(f"{name}: an unknown kind of input", hint="is its package not installed?")


def kind_of_path(path: str) -> tuple[InputKind, str]:
    """The kind of a file by its extension, and how the file is compressed."""
    stem, extension = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(extension, "")
    if compression:
        extension = os.path.splitext(stem)[1]
    for kind in _all_kinds():
        if extension in kind.extensions and (kind.may_be_compressed or not compression):
            return kind, compression
    known = [e for kind in _all_kinds() for e in kind.extensions]
    raise InputError(
        f"{path}: unknown extension {''.join(Path(path).suffixes[-2:]) or '(none)'}",
        hint=f"read are {', '.join(known)}, and JSON lines and text with "
        f"{', '.join(COMPRESSIONS)}; name the files you want, for example with a glob",
    )


def segments_of(source: Source, reading: Reading) -> Iterator[Segment]:
    """Cut one source. The only step that looks into the file: a parquet footer, Arrow's headers."""
    return kind_named(source.kind).segments(source, reading)


def read_segment(
    source: Source,
    segment: Segment,
    reading: Reading,
    aside: FatalRows | None = None,
    alive: SignOfLife = nobody_watches,
    room: MemoryShare = NO_LIMIT,
    *,
    whole: bool = False,
) -> Iterator[Batch]:
    """The documents of a segment, in order; those of the rows in `aside` among the bad rows.

    Nothing is repaired and nothing is lost: every row is in `texts` or, with its reason and its
    bytes, in `bad`. Long documents come in pieces where that is exact; with `whole`, only those of
    text files. What must be held whole and does not fit the room is refused.
    """
    kind = kind_named(source.kind)
    if whole and not kind.cuts_documents:
        reading = msgspec.structs.replace(reading, may_cut=False)
    batches = kind.read(ReadRequest(source, segment, reading, aside or {}, alive, room))
    if aside and not kind.quarantines_fatal:
        batches = (set_aside(batch, aside) for batch in batches)
    if not reading.may_cut or kind.cuts_documents:
        return batches
    return (part for batch in batches for part in in_fragments(batch))


def refuse_changed(source: Source) -> None:
    """A file that is not what it was when planned: its rows would be neither old nor new."""
    if source.remote is not None:
        return  # its content was compared when it came, its copy whenever a worker read it
    try:
        stat = os.stat(source.path)
    except OSError as error:
        raise SourceError(f"{source.name}: cannot be read any more: {error.strerror}") from None
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.mtime_ns):
        raise SourceError(
            f"{source.name}: changed while it was being read (its size or its time)",
            hint="start again with the file as it should be",
        )
