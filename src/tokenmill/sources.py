"""Find, identify and fingerprint the input files, before any work begins.

Arguments count in the order given; inside a directory or a glob, files come recursively in the
order of their paths' bytes, whatever the file system lists first and whatever the locale.
Whatever cannot be read as what it claims to be is an error here, not after an hour.
"""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, Literal

import msgspec
import xxhash

from tokenmill.arrow_ipc import Layout, Served, layout_of, open_batches
from tokenmill.errors import InputError, SourceError
from tokenmill.fields import check_column, field_names, has_field, listed
from tokenmill.listing import Skipped, expand, printable, refuse_twice
from tokenmill.parquet_footer import column_paths, row_counts
from tokenmill.remote.address import RemoteFile, is_url
from tokenmill.remote.hub import Shelf
from tokenmill.remote.locate import locate
from tokenmill.streams import open_stream

Kind = Literal["parquet", "arrow", "jsonl", "text"]

EXTENSIONS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
EXTENSION_NAMES = (*EXTENSIONS, *COMPRESSIONS)
MAGIC = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
BOM = b"\xef\xbb\xbf"

# Files up to this size are hashed whole; of larger ones as much, in blocks spread evenly.
FINGERPRINT_BYTES = 16 << 20
FINGERPRINT_BLOCK = 64 << 10
PEEK_BYTES = 256 << 10
READ_BUFFER = 1 << 20


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input file. `name` is relative to the inputs' common root, or a URL; `path` opens it.

    One that is elsewhere (`remote`) has no path until it is fetched; then `at_hand` makes it one
    that has, and that is what workers see.
    """

    number: int
    name: str
    path: str
    kind: Kind
    compression: str = ""
    size: int
    fingerprint: str
    mtime_ns: int
    rows: int = -1  # known from a parquet footer or Arrow's headers; -1 where only reading tells
    chained: bool = False  # Arrow whose dictionaries change on the way: read in order
    remote: RemoteFile | None = None

    def identity(self) -> dict[str, Any]:
        """What binds this source to a plan: nothing of where or when it lies on disk."""
        return {"name": self.name, "size": self.size, "fingerprint": self.fingerprint}


class Found(msgspec.Struct, frozen=True):
    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...]
    revisions: dict[str, str] = {}  # of the Hub, as asked for -> commit


def find_sources(
    inputs: Sequence[str | os.PathLike[str]],
    text_column: str,
    exclude: str | os.PathLike[str] | None = None,
    pins: dict[str, str] | None = None,
    shelf: Shelf | None = None,
) -> Found:
    """Every file the inputs name, checked, in order; and what was passed over, with the reason.

    `exclude` is the output folder: where it lies inside an input folder, a second run must not
    take what the first one wrote for input. `pins`: commits of the Hub that it is bound to.
    """
    if not inputs:
        raise InputError("no inputs given", hint="name files, directories or globs")
    skipped: list[Skipped] = []
    files: list[str | RemoteFile] = []
    folders: dict[str, list[str]] = {}
    revisions: dict[str, str] = {}
    for argument in [os.fspath(one) for one in inputs]:
        if is_url(argument) and not os.path.exists(argument):
            located = locate(argument, pins or {}, shelf or Shelf(lambda _: None), EXTENSION_NAMES)
            files.extend(located.files)
            skipped.extend(Skipped(path, reason) for path, reason in located.skipped)
            revisions.update(located.revisions)
            folders[argument] = [file.name for file in located.files]
            continue
        found = expand(argument, skipped)
        files.extend(found)
        if os.path.isdir(argument):
            folders[argument] = found
    if exclude is not None:
        files = _outside(files, exclude, skipped)
    taken = set(map(_name_or_path, files))
    for folder, found in folders.items():
        _refuse_mixture(folder, [path for path in found if path in taken])
    refuse_twice([_name_or_path(file) for file in files])
    paths = [file for file in files if isinstance(file, str)]
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""

    def identify(item: tuple[int, str | RemoteFile]) -> Source:
        number, file = item
        if isinstance(file, str):
            return _identify(number, file, root, text_column)
        return _elsewhere(number, file)

    with ThreadPoolExecutor(max_workers=4) as pool:
        sources = list(pool.map(identify, enumerate(files)))
    shown = [Skipped(printable(s.path), s.reason) for s in skipped]
    return Found(tuple(sources), tuple(shown), revisions)


def _name_or_path(file: str | RemoteFile) -> str:
    return file if isinstance(file, str) else file.name


def _outside(
    files: list[str | RemoteFile], folder: str | os.PathLike[str], skipped: list[Skipped]
) -> list[str | RemoteFile]:
    """Without the files that lie in the output folder."""
    inside = os.path.join(os.path.realpath(folder), "")
    kept: list[str | RemoteFile] = []
    for file in files:
        if isinstance(file, str) and os.path.realpath(file).startswith(inside):
            skipped.append(Skipped(file, "in the output folder"))
        else:
            kept.append(file)
    if not kept:
        raise InputError("the only inputs are in the output folder")
    return kept


def _elsewhere(number: int, file: RemoteFile) -> Source:
    """What can be said of a file before it is here: what it is called and how long it is."""
    kind, compression = _kind_of(file.name)
    if file.size == 0 and (kind, compression) != ("text", ""):
        raise InputError(f"{file.name}: the file is empty", hint="leave it out")
    return Source(
        number=number,
        name=file.name,
        path="",
        kind=kind,
        compression=compression,
        size=file.size,
        fingerprint=file.fingerprint,
        mtime_ns=0,
        remote=file,
    )


def at_hand(source: Source, path: str, text_column: str) -> Source:
    """A source that was elsewhere and is fetched now: looked at as any other file."""
    try:
        found = _identify(source.number, path, os.path.dirname(path), text_column, said=source)
    except InputError as error:  # whoever asked for it knows it by its URL
        raise InputError(error.message.replace(path, source.name), hint=error.hint) from None
    return msgspec.structs.replace(
        found, name=source.name, fingerprint=source.fingerprint, remote=None
    )


def _refuse_mixture(folder: str, paths: list[str]) -> None:
    """A readme.txt beside parquet files is hardly meant as a document."""
    kinds = {_kind_of(path)[0] for path in paths}
    stray = [path for path in paths if path.lower().endswith(".json")]
    if stray and len(kinds) > 1 and is_url(folder):  # found out when it comes, after a day
        raise InputError(
            f"{folder}: holds .json files ({os.path.basename(stray[0])}) beside other inputs",
            hint="if they are about the data, name the others by a pattern, for example "
            f"{folder.rstrip('/')}/**/*.parquet; else give both by patterns of their own",
        )
    if "text" in kinds and len(kinds) > 1:
        text = next(path for path in paths if _kind_of(path)[0] == "text")
        raise InputError(
            f"{folder}: holds text files ({os.path.basename(text)}) beside other inputs",
            hint=f"say which you want: {folder}/**/*.txt, or the others by a pattern of their own",
        )


def _identify(
    number: int, path: str, root: str, text_column: str, said: Source | None = None
) -> Source:
    """`said`: what is known of it already, so that it need not be read for its fingerprint."""
    kind, compression = _kind_of(path) if said is None else (said.kind, said.compression)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(f"{path!r}: a file name that is not UTF-8", hint="rename it") from None
    try:
        stat = os.stat(path)
        if not S_ISREG(stat.st_mode):
            raise InputError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            _check_magic(path, kind, compression, stat.st_size, file)
            fingerprint = said.fingerprint if said else _fingerprint(file, stat.st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    rows, chained = -1, False
    if kind == "parquet":
        rows = _check_parquet(path, text_column)
    elif kind == "arrow":
        layout = _check_arrow(path, stat.st_mtime_ns, text_column)
        rows, chained = layout.rows, layout.chained
    elif kind == "jsonl":
        _check_jsonl(path, compression, text_column)
    return Source(
        number=number,
        name=os.path.relpath(path, root),
        path=path,
        kind=kind,
        compression=compression,
        size=stat.st_size,
        fingerprint=fingerprint,
        mtime_ns=stat.st_mtime_ns,
        rows=rows,
        chained=chained,
    )


def _kind_of(path: str) -> tuple[Kind, str]:
    stem, extension = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(extension, "")
    if compression:
        extension = os.path.splitext(stem)[1]
    kind = EXTENSIONS.get(extension)
    if kind is None or (compression and kind not in ("jsonl", "text")):
        raise InputError(
            f"{path}: unknown extension {''.join(Path(path).suffixes[-2:]) or '(none)'}",
            hint=f"read are {', '.join(EXTENSIONS)}, and JSON lines and text with "
            f"{', '.join(COMPRESSIONS)}; name the files you want, for example with a glob",
        )
    return kind, compression


def _check_magic(path: str, kind: Kind, compression: str, size: int, file: IO[bytes]) -> None:
    if size == 0 and (kind, compression) != ("text", ""):
        raise InputError(f"{path}: the file is empty", hint="remove it, or fetch it again")
    head = file.read(max(len(LFS_POINTER), 8))
    if head.startswith(LFS_POINTER):
        raise InputError(
            f"{path}: a git-LFS pointer, not the file itself",
            hint="run `git lfs pull` in that repository, or download the file",
        )
    if kind == "parquet":
        file.seek(max(0, size - 4))
        if head[:4] != b"PAR1" or file.read(4) != b"PAR1":
            raise InputError(
                f"{path}: not a parquet file, or cut short (PAR1 missing at "
                f"{'the start' if head[:4] != b'PAR1' else 'the end'})",
                hint="download it again and compare its size",
            )
    elif kind == "arrow":
        if head.startswith(b"FEA1"):
            raise InputError(
                f"{path}: Feather version 1, which is not Arrow IPC",
                hint="write it again with pyarrow.feather.write_feather(..., version=2)",
            )
    elif compression:
        if not head.startswith(MAGIC[compression]) and not _skippable_frame(head, compression):
            raise InputError(
                f"{path}: does not begin like a .{compression} file",
                hint="give it the extension of what it is, or fetch it again",
            )
    else:
        for name, magic in (*MAGIC.items(), ("parquet", b"PAR1"), ("arrow", b"ARROW1")):
            if head.startswith(magic):
                what = "text" if kind == "text" else "JSON lines"
                raise InputError(
                    f"{path}: looks like {name}, not like {what}",
                    hint=f"give it its right extension (.{name})",
                )


def _skippable_frame(head: bytes, compression: str) -> bool:
    """A zstd file may begin with a skippable frame (pzstd writes one)."""
    return compression == "zst" and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F


def _fingerprint(file: IO[bytes], size: int) -> str:
    """xxh3 over the content: all of it, or 256 blocks spread evenly with both ends."""
    digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
    if size <= FINGERPRINT_BYTES:
        file.seek(0)
        digest.update(file.read())
        return "xxh3:" + digest.hexdigest()
    blocks = FINGERPRINT_BYTES // FINGERPRINT_BLOCK
    for i in range(blocks):
        file.seek((size - FINGERPRINT_BLOCK) * i // (blocks - 1))
        digest.update(file.read(FINGERPRINT_BLOCK))
    return "xxh3-sampled:" + digest.hexdigest()


def open_parquet(path: str, metadata: Any = None, dictionary: str = "") -> Any:
    """A pyarrow ParquetFile that checks page checksums where there are any.

    The column named by `dictionary` is left as one where it is stored as one.
    """
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=[dictionary] if dictionary else None,
            page_checksum_verification=True,
            buffer_size=READ_BUFFER,  # else a column chunk is read whole before its first page
        )
    except Exception as error:  # a damaged footer may be anything, a name that is no text too
        raise SourceError(
            f"{path}: the parquet footer cannot be read: {error}",
            hint="download the file again and compare its size or checksum",
        ) from None


def _check_parquet(path: str, text_column: str) -> int:
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            rows = sum(row_counts(path, file.metadata))
            paths = column_paths(path, file.metadata)
    except SourceError as error:
        raise InputError(error.message, hint=error.hint) from None
    check_column(path, schema, text_column)
    if paths.count(text_column) > 1:
        raise InputError(
            f"{path}: more than one column is called {text_column!r}",
            hint="write the file with one of them, or choose another with --text-column",
        )
    return rows


def arrow_schema(path: str, mtime_ns: int) -> Any:
    """The schema of an Arrow stream or file."""
    import pyarrow

    layout = layout_of(path, mtime_ns)
    try:
        with Served(path, layout, 0, 0) as served, open_batches(served, None) as reader:
            return reader.schema
    except (OSError, ValueError, TypeError, MemoryError, pyarrow.ArrowException) as error:
        raise SourceError(
            f"{path}: the schema cannot be read: {error}",
            hint="fetch or write the file again and compare its size",
        ) from None


def _check_arrow(path: str, mtime_ns: int, text_column: str) -> Layout:
    try:
        schema = arrow_schema(path, mtime_ns)
        layout = layout_of(path, mtime_ns)
    except SourceError as error:
        raise InputError(error.message, hint=error.hint) from None
    check_column(path, schema, text_column)
    return layout


def _check_jsonl(path: str, compression: str, text_column: str) -> None:
    """Look at the first lines: is it JSON lines, and has any of them the field?"""
    try:
        with open_stream(path, compression) as stream:
            head = stream.read(PEEK_BYTES)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise InputError(
            f"{path}: cannot be decompressed: {error}",
            hint="the file is damaged or cut short: fetch it again and compare its size",
        ) from None
    head = head.removeprefix(BOM)
    lines = head.split(b"\n")
    if len(head) >= PEEK_BYTES - len(BOM) and len(lines) > 1:
        lines.pop()  # cut off in the middle
    if _is_array([line for line in lines if line.strip()]):
        raise InputError(
            f"{path}: one JSON array, not JSON lines",
            hint="write one object a line, for example with `jq -c '.[]'`",
        )
    fields: dict[str, None] = {}
    for row in map(_decoded, lines[:100]):
        if isinstance(row, dict):
            if has_field(row, text_column):
                return
            fields.update(dict.fromkeys(field_names(row)))
    if fields:
        raise InputError(
            f"{path}: no field {text_column!r} in its first rows",
            hint=f"fields are: {listed(fields)}; choose one with --text-column",
        )


def _is_array(lines: list[bytes]) -> bool:
    """Whether the file is one JSON array; a line that is one among others is but a bad row."""
    if not lines or lines[0].lstrip()[:1] != b"[":
        return False
    return len(lines) == 1 or not isinstance(_decoded(lines[0]), list)


def _decoded(line: bytes) -> Any:
    """A line's JSON; None where it has none, of which the run will tell more."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
