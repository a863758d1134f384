"""Find, identify and fingerprint the input files, before any work begins.

Arguments count in the order given; inside a directory or a glob, files come recursively in the
order of their paths' bytes, whatever the file system lists first and whatever the locale.
Whatever cannot be read as what it claims to be is an error here, not after an hour.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, Literal

import msgspec
import xxhash

from tokenmill.errors import InputError, SourceError

Kind = Literal["parquet", "jsonl"]

EXTENSIONS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
MAGIC = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
BOM = b"\xef\xbb\xbf"

# Files up to this size are hashed whole; of larger ones as much, in blocks spread evenly.
FINGERPRINT_BYTES = 16 << 20
FINGERPRINT_BLOCK = 64 << 10
PEEK_BYTES = 256 << 10


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input file. `name` is relative to the inputs' common root; `path` opens it."""

    number: int
    name: str
    path: str
    kind: Kind
    compression: str = ""
    size: int
    fingerprint: str
    mtime_ns: int
    rows: int = -1  # known from a parquet footer; -1 where only reading tells

    def identity(self) -> dict[str, Any]:
        """What binds this source to a plan: nothing of where or when it lies on disk."""
        return {"name": self.name, "size": self.size, "fingerprint": self.fingerprint}


class Skipped(msgspec.Struct, frozen=True):
    path: str
    reason: str


class Found(msgspec.Struct, frozen=True):
    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...]


def find_sources(
    inputs: Sequence[str | os.PathLike[str]],
    text_column: str,
    exclude: str | os.PathLike[str] | None = None,
) -> Found:
    """Every file the inputs name, checked, in order; and what was passed over, with the reason.

    `exclude` is the output folder: where it lies inside an input folder, a second run must not
    take what the first one wrote for input.
    """
    if not inputs:
        raise InputError("no inputs given", hint="name files, directories or globs")
    skipped: list[Skipped] = []
    paths: list[str] = []
    for argument in inputs:
        paths.extend(_expand(os.fspath(argument), skipped))
    if exclude is not None:
        inside = os.path.join(os.path.realpath(exclude), "")
        ours = {path for path in paths if os.path.realpath(path).startswith(inside)}
        skipped.extend(Skipped(path, "in the output folder") for path in paths if path in ours)
        paths = [path for path in paths if path not in ours]
        if not paths:
            raise InputError("the only inputs are in the output folder")
    _refuse_twice(paths)
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    with ThreadPoolExecutor(max_workers=4) as pool:
        sources = list(
            pool.map(lambda item: _identify(item[0], item[1], root, text_column), enumerate(paths))
        )
    shown = [Skipped(_printable(s.path), s.reason) for s in skipped]
    return Found(tuple(sources), tuple(shown))


def _printable(path: str) -> str:
    """A path that can be printed and put into JSON, whatever bytes it is made of."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _expand(argument: str, skipped: list[Skipped]) -> list[str]:
    """One argument to absolute paths of files."""
    if os.path.isdir(argument):
        files = list(_walk(argument, skipped))
        if not files:
            raise InputError(f"{argument}: no input files in this directory")
        return files
    if os.path.exists(argument):
        return [os.path.abspath(argument)]
    if glob.has_magic(argument):
        files = _expand_glob(argument, skipped)
        if not files:
            raise InputError(
                f"{argument}: no file matches", hint="check the pattern; an empty glob is an error"
            )
        return files
    raise InputError(f"{argument}: no such file or directory")


def _expand_glob(pattern: str, skipped: list[Skipped]) -> list[str]:
    fixed = 0  # leading components without magic: named by the user, hidden or not
    while not glob.has_magic(Path(pattern).parts[fixed]):
        fixed += 1
    files: list[str] = []
    # include_hidden, so that a skipped file is listed and not just absent
    for match in sorted(glob.glob(pattern, recursive=True, include_hidden=True), key=os.fsencode):
        reason = next(filter(None, map(_hidden, Path(match).parts[fixed:])), "")
        if os.path.isdir(match):
            if not reason and "**" not in pattern:
                files.extend(_walk(match, skipped))
        elif reason:
            skipped.append(Skipped(match, reason))
        else:
            files.append(os.path.abspath(match))
    return sorted(files, key=os.fsencode)


def _walk(directory: str, skipped: list[Skipped]) -> Iterator[str]:
    found: list[str] = []

    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be listed: {error.strerror}")

    for folder, names, files in os.walk(directory, onerror=unreadable):
        for name in names:
            if os.path.islink(os.path.join(folder, name)) and not _hidden(name):
                skipped.append(Skipped(os.path.join(folder, name), "a link to a folder"))
        for name in [n for n in names if _hidden(n)]:
            skipped.append(Skipped(os.path.join(folder, name), _hidden(name)))
            names.remove(name)
        for name in files:
            if _hidden(name):
                skipped.append(Skipped(os.path.join(folder, name), _hidden(name)))
            else:
                found.append(os.path.abspath(os.path.join(folder, name)))
    return iter(sorted(found, key=os.fsencode))


def _hidden(path: str) -> str:
    """Why a file found by searching is passed over; '' when it is not."""
    name = os.path.basename(path.rstrip("/"))
    if name.startswith("."):
        return "hidden"
    return "starts with an underscore" if name.startswith("_") else ""


def _refuse_twice(paths: list[str]) -> None:
    seen: dict[str, str] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise InputError(
                f"{path}: named twice" + (f" (also as {seen[real]})" if seen[real] != path else ""),
                hint="each file may be given once; a directory or glob may already include it",
            )
        seen[real] = path


def _identify(number: int, path: str, root: str, text_column: str) -> Source:
    kind, compression = _kind_of(path)
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
            fingerprint = _fingerprint(file, stat.st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    rows = -1
    if kind == "parquet":
        rows = _check_parquet(path, text_column)
    else:
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
    )


def _kind_of(path: str) -> tuple[Kind, str]:
    stem, extension = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(extension, "")
    if compression:
        extension = os.path.splitext(stem)[1]
    kind = EXTENSIONS.get(extension)
    if kind is None or (compression and kind == "parquet"):
        raise InputError(
            f"{path}: unknown extension {''.join(Path(path).suffixes[-2:]) or '(none)'}",
            hint=f"read are {', '.join(EXTENSIONS)}, and JSON lines with "
            f"{', '.join(COMPRESSIONS)}; name the files you want, for example with a glob",
        )
    return kind, compression


def _check_magic(path: str, kind: Kind, compression: str, size: int, file: IO[bytes]) -> None:
    if size == 0:
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
    elif compression:
        if not head.startswith(MAGIC[compression]) and not _skippable_frame(head, compression):
            raise InputError(f"{path}: does not begin like a .{compression} file")
    else:
        for name, magic in (*MAGIC.items(), ("parquet", b"PAR1")):
            if head.startswith(magic):
                raise InputError(
                    f"{path}: looks like {name}, not like JSON lines",
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
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=[dictionary] if dictionary else None,
            page_checksum_verification=True,
        )
    except (OSError, pyarrow.ArrowException) as error:
        raise SourceError(
            f"{path}: the parquet footer cannot be read: {error}",
            hint="download the file again and compare its size or checksum",
        ) from None


def is_text_type(kind: Any) -> bool:
    """Whether an Arrow type holds text or bytes, also under a dictionary."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def _check_parquet(path: str, text_column: str) -> int:
    try:
        file = open_parquet(path)
    except SourceError as error:
        raise InputError(error.message, hint=error.hint) from None
    with file:
        schema = file.schema_arrow
        if text_column not in schema.names:
            raise InputError(
                f"{path}: no column {text_column!r}",
                hint=f"columns are: {', '.join(schema.names)}; choose one with --text-column",
            )
        paths = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
        if schema.names.count(text_column) > 1 or paths.count(text_column) > 1:
            raise InputError(f"{path}: more than one column is called {text_column!r}")
        kind = schema.field(text_column).type
        if not is_text_type(kind):
            raise InputError(
                f"{path}: column {text_column!r} is {kind}, not text",
                hint="choose a string or binary column with --text-column",
            )
        return int(file.metadata.num_rows)


def open_stream(path: str, compression: str) -> Any:
    """The decompressed bytes of a file, several members or frames included."""
    if compression == "gz":
        return gzip.open(path, "rb")
    if compression == "bz2":
        return io.BufferedReader(_Streams(path, bz2.BZ2Decompressor, padding=0), 1 << 20)
    if compression == "xz":
        return io.BufferedReader(_Streams(path, lzma.LZMADecompressor, padding=4), 1 << 20)
    if compression == "zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(pyarrow.OSFile(path), "zstd")
        return io.BufferedReader(stream, 1 << 20)
    return open(path, "rb")


class _Streams(io.RawIOBase):
    """One or more bz2 or xz streams end to end, and nothing else.

    The standard library's own readers take whatever follows a stream and does not begin like one
    for garbage and end there in silence: a flipped bit in a magic number would lose the rest of
    the file. Between xz streams zeros in fours are padding.
    """

    def __init__(self, path: str, make: Callable[[], Any], padding: int) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - closed with this object
        self._make, self._padding = make, padding
        self._decompressor = make()
        self._begun = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decompressor.eof and not self._next_stream():
                return 0
            data = b""
            if self._decompressor.needs_input:
                data = self._file.read(1 << 20)
                if not data:
                    raise EOFError("the file ends in the middle of a compressed stream")
            content = self._decompressor.decompress(data, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)

    def _next_stream(self) -> bool:
        """Begin the stream that follows; False at the end of the file."""
        rest = self._decompressor.unused_data
        zeros = 0
        while True:
            if not rest:
                rest = self._file.read(1 << 20)
            if not rest:
                break
            kept = rest.lstrip(b"\0") if self._padding else rest
            zeros += len(rest) - len(kept)
            rest = kept
            if rest:
                break
        if zeros and zeros % self._padding:
            raise OSError("padding of a wrong length after a compressed stream")
        if not rest:
            return False
        self._decompressor = self._make()
        self._file.seek(-len(rest), os.SEEK_CUR)
        return True


def _check_jsonl(path: str, compression: str, text_column: str) -> None:
    """Look at the first lines: is it JSON lines, and has any of them the field?"""
    try:
        with open_stream(path, compression) as stream:
            head = stream.read(PEEK_BYTES)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be decompressed: {error}") from None
    head = head.removeprefix(BOM)
    lines = head.split(b"\n")
    if len(head) >= PEEK_BYTES - len(BOM) and len(lines) > 1:
        lines.pop()  # cut off in the middle
    if head.lstrip()[:1] == b"[":
        raise InputError(
            f"{path}: one JSON array, not JSON lines",
            hint="write one object a line, for example with `jq -c '.[]'`",
        )
    fields: dict[str, None] = {}
    for line in lines[:100]:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(row, dict):
            if text_column in row:
                return
            fields.update(dict.fromkeys(row))
    if fields:
        raise InputError(
            f"{path}: no field {text_column!r} in its first rows",
            hint=f"fields are: {', '.join(fields)}; choose one with --text-column",
        )
