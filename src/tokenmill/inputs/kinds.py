"""The input kinds, as `formats/` has the trainers' formats: which files are read, and how.

Another package adds a kind by an entry point of the group `tokenmill.inputs` that names an
`InputKind`. It is looked for only when a name or an extension is not one of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tokenmill.errors import InputError, UsageError, did_you_mean
from tokenmill.inputs.batch import Batch, FatalRows, SignOfLife, nobody_watches, set_aside
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.kind import InputKind, ReadRequest
from tokenmill.inputs.readers.arrow import ARROW
from tokenmill.inputs.readers.fragments import in_fragments
from tokenmill.inputs.readers.jsonl import JSONL
from tokenmill.inputs.readers.parquet import PARQUET
from tokenmill.inputs.readers.text import TEXT
from tokenmill.inputs.rows.csv_files import CSV, TSV
from tokenmill.inputs.rows.json_arrays import JSON_ARRAY
from tokenmill.inputs.rows.prepared import PREPARED
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.memory import NO_LIMIT, MemoryShare
from tokenmill.system.plugins import added

BUILT_IN: tuple[InputKind, ...] = (PARQUET, ARROW, JSONL, TEXT, CSV, TSV, JSON_ARRAY, PREPARED)
# Text files that are read where they are named, by a path or a glob; beside data in a folder they
# are hardly meant as documents.
_NAMED = """
.md .markdown .mdx .rst .adoc .org .tex .html .htm .css .py .pyi .c .h .cc .cpp .cxx .hh .hpp .cu
.java .kt .scala .go .rs .js .mjs .jsx .ts .tsx .rb .php .pl .pm .lua .r .jl .swift .cs .fs .hs .ml
.clj .ex .exs .erl .sh .bash .zsh .sql .zig .nim .dart .v .sv .vhd .f90 .asm .s .lean .yaml .yml
.toml .ini .cfg .log
"""
NAMED_TEXT = frozenset(_NAMED.split())
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
    raise InputError(
        f"{name}: an unknown kind of input",
        hint=f"{did_you_mean(name, [kind.name for kind in _all_kinds()])}known are "
        f"{', '.join(kind.name for kind in BUILT_IN)}, and those of installed packages",
    )


def extension_of(path: str) -> tuple[str, str]:
    """The extension that tells the kind of a file, and how the file is compressed."""
    stem, extension = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(extension, "")
    return os.path.splitext(stem)[1] if compression else extension, compression


# Beside data: about the data, and not meant as documents.
ABOUT = re.compile(
    r"(?:readme|licen[cs]e|copying|notice|changelog|citation|authors|contributing)(?:[.-].*)?"
    r"|.*\.(?:md|markdown|rst)|sha256sums|md5sums|checksums?(?:\..*)?|\.gitattributes",
    re.IGNORECASE,
)


def stray_reason(path: str, rules: InputRules) -> str:
    """Why a file that a search found is not an input; '' where it is one."""
    name = os.path.basename(path)
    if rules.kind_for(path) or not ABOUT.fullmatch(name):
        return ""
    extension, _ = extension_of(name)
    data = any(extension in kind.extensions for kind in BUILT_IN)
    return "" if data else "about the data (name it to read it)"


def kind_of_path(path: str, forced: str = "", *, searched: bool = False) -> tuple[InputKind, str]:
    """The kind of a file by its extension, or as the user says; and how the file is compressed.

    `searched`: found in a folder, and not named.
    """
    extension, compression = extension_of(path)
    if forced:
        kind = kind_named(forced)
        if compression and not kind.may_be_compressed:
            raise InputError(f"{path}: {kind.title} cannot be compressed as a whole")
        return kind, compression
    if extension in NAMED_TEXT and not searched:
        return TEXT, compression
    for kind in _all_kinds():
        if extension in kind.extensions and (kind.may_be_compressed or not compression):
            return kind, compression
    known = [e for kind in _all_kinds() for e in kind.extensions]
    raise InputError(
        f"{path}: unknown extension {''.join(Path(path).suffixes[-2:]) or '(none)'}",
        hint=f"read are {', '.join(known)}, source code and Markdown that is named, and all but "
        f"parquet and Arrow with {', '.join(COMPRESSIONS)}; --as text (jsonl, csv ...) says what "
        "other files are, a glob names the files you want",
    )


def reading_for(source: Source, reading: Reading) -> Reading:
    """How one source is read: it may have a text column of its own."""
    if not source.text_column:
        return reading
    return msgspec.structs.replace(reading, text_column=source.text_column)


def segments_of(source: Source, reading: Reading) -> Iterator[Segment]:
    """Cut one source. The only step that looks into the file: a parquet footer, Arrow's headers."""
    return kind_named(source.kind).segments(source, reading_for(source, reading))


def read_segment(
    source: Source,
    segment: Segment,
    reading: Reading,
    aside: FatalRows | None = None,
    alive: SignOfLife = nobody_watches,
    room: MemoryShare = NO_LIMIT,
    *,
    whole: bool = False,
    ranges: bool = False,
) -> Iterator[Batch]:
    """The documents of a segment, in order; those of the rows in `aside` among the bad rows.

    Nothing is repaired and nothing is lost: every row is in `texts` or, with its reason and its
    bytes, in `bad`. Long documents come in pieces where that is exact; with `whole`, only those of
    text files. What must be held whole and does not fit the room is refused. With `ranges`, what is
    damaged of a file whose rows are known is among the bad rows, too.
    """
    kind, reading = kind_named(source.kind), reading_for(source, reading)
    if whole and not kind.cuts_documents:
        reading = msgspec.structs.replace(reading, may_cut=False)
    batches = kind.read(ReadRequest(source, segment, reading, aside or {}, alive, room, ranges))
    if aside and not kind.quarantines_fatal:
        batches = (set_aside(batch, aside) for batch in batches)
    if not reading.may_cut or kind.cuts_documents:
        return batches
    return (part for batch in batches for part in in_fragments(batch))


def refuse_changed(source: Source) -> None:
    """A source that is not what it was when planned. What came from elsewhere was compared when it
    came, and its copy whenever a worker read it."""
    if source.remote is None:
        kind_named(source.kind).refuse_changed(source)
