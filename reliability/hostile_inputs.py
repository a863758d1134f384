"""Every form of input we read, small, as bytes: what R8 breaks.

A form knows how to write itself, what protects its bytes, and how many rows it has when some of
its bytes are others: so that a reader's count can be checked by something that is not the reader.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import xxhash

from reliability import corpus

Values = Sequence[str | bytes | None]
SEPARATOR = "\n---\n"
ROWS_IN_GROUP = 13  # of row groups and record batches
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Form:
    """A kind of input file. `sealed`: a checksum covers its content, so a change is an error."""

    name: str
    suffix: str
    write: Callable[[Values], bytes]
    sealed: bool = False
    separator: str | None = None

    @property
    def kind(self) -> str:
        return self.name.split()[0]

    @property
    def lines(self) -> bool:
        return self.kind in ("jsonl", "text")

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.separator is None else {"text_separator": self.separator}

    @property
    def container(self) -> bool:
        """Whether a part of it is recognized as such: plain text cut short is shorter text."""
        return self.suffix not in (".jsonl", ".txt")

    def plain(self, values: Values) -> bytes:
        return unpacked(self.write(values), self.suffix)

    def rows(self, content: bytes, written: int) -> int:
        """How many rows there are in it, after whatever was done to it."""
        if not self.lines:
            return written  # they are counted in several places of the file
        plain = unpacked(content, self.suffix)
        if self.kind == "text":
            if self.separator is None:
                return 1
            pieces = plain.split(self.separator.encode())
            return len(pieces) - (not pieces[-1])
        return sum(bool(line.strip()) for line in plain.removeprefix(BOM).split(b"\n"))


def texts(count: int = 48) -> list[str]:
    """Documents in several scripts; some stand there twice, which makes dictionaries."""
    some = corpus.documents(count * 3 // 4, "hostile", words=25)
    return (some + some[: count // 4])[:count]


# --- parquet ---------------------------------------------------------------------------------


def parquet(**options: Any) -> Callable[[Values], bytes]:
    def write(values: Values) -> bytes:
        sink = io.BytesIO()
        counts = [len(value or "") // 4 for value in values]  # FineWeb's column: `plan` reads it
        columns = {"id": range(len(values)), "text": column_of(values), "token_count": counts}
        table = pyarrow.table(columns)
        pyarrow.parquet.write_table(table, sink, row_group_size=ROWS_IN_GROUP, **options)
        return sink.getvalue()

    return write


def column_of(values: Values, kind: Any = None) -> Any:
    """A string column; of bytes that are no UTF-8 too, as a careless writer would make it."""
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    if kind is not None and pyarrow.types.is_dictionary(kind):
        places = {value: place for place, value in enumerate(dict.fromkeys(raw))}
        words = pyarrow.array([b"" if value is None else value for value in places])
        indices = [None if value is None else places[value] for value in raw]
        return pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(indices, pyarrow.int8()), words.view(pyarrow.string())
        )
    kind = kind or pyarrow.string()
    return pyarrow.array(raw, _bytes_like(kind)).view(kind)


def _bytes_like(kind: Any) -> Any:
    if pyarrow.types.is_string_view(kind):
        return pyarrow.binary_view()
    return pyarrow.large_binary() if pyarrow.types.is_large_string(kind) else pyarrow.binary()


PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
DELTA = {"use_dictionary": False, "data_page_version": "2.0", "compression": "snappy"}
PARQUET = [
    Form("parquet plain", ".parquet", parquet(**PLAIN)),
    Form("parquet dictionary", ".parquet", parquet(compression="none")),
    Form("parquet snappy", ".parquet", parquet(compression="snappy")),
    Form("parquet gzip", ".parquet", parquet(use_dictionary=False, compression="gzip")),
    Form("parquet zstd", ".parquet", parquet(use_dictionary=False, compression="zstd")),
    Form("parquet lz4", ".parquet", parquet(compression="lz4")),
    Form("parquet brotli", ".parquet", parquet(use_dictionary=False, compression="brotli")),
    Form("parquet crc", ".parquet", parquet(write_page_checksum=True, **PLAIN), True),
    Form("parquet crc zstd", ".parquet",
         parquet(write_page_checksum=True, compression="zstd"), True),
    Form("parquet delta", ".parquet",
         parquet(column_encoding={"text": "DELTA_BYTE_ARRAY"}, **DELTA)),
    Form("parquet lengths", ".parquet",
         parquet(column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}, **DELTA)),
]  # fmt: skip


# --- Arrow -----------------------------------------------------------------------------------

ARROW_KINDS = {
    "string": pyarrow.string(),
    "large_string": pyarrow.large_string(),
    "string_view": pyarrow.string_view(),
    "dictionary": pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
}


def arrow(form: str, kind: str, compression: str | None) -> Callable[[Values], bytes]:
    def write(values: Values) -> bytes:
        sink = io.BytesIO()
        column = column_of(values, ARROW_KINDS[kind])
        table = pyarrow.table({"id": range(len(values)), "text": column})
        new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
        options = pyarrow.ipc.IpcWriteOptions(compression=compression)
        with new(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=ROWS_IN_GROUP)
        return sink.getvalue()

    return write


def _arrow_forms() -> Iterator[Form]:
    for form in ("stream", "file"):
        for kind in ARROW_KINDS:
            for compression in (None, "lz4", "zstd"):
                name = " ".join(filter(None, ("arrow", form, kind, compression)))
                yield Form(name, ".arrow", arrow(form, kind, compression))


# --- lines and text --------------------------------------------------------------------------


def zstd(content: bytes) -> bytes:
    """A frame without a checksum, as most writers leave it."""
    return bytes(pyarrow.compress(content, "zstd", asbytes=True))


def checked_zstd(content: bytes) -> bytes:
    """The same with the checksum that the `zstd` command writes: a flag, and xxh64 at the end."""
    frame = bytearray(zstd(content))
    frame[4] |= 4
    return bytes(frame) + xxhash.xxh64_intdigest(content).to_bytes(8, "little")[:4]


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes], bool]] = {
    "": ("", bytes, False),
    "gz": (".gz", lambda content: gzip.compress(content, mtime=0), True),
    "zst": (".zst", zstd, False),
    "zst checked": (".zst", checked_zstd, True),
    "bz2": (".bz2", bz2.compress, True),
    "xz": (".xz", lzma.compress, True),
}


def unpacked(content: bytes, suffix: str) -> bytes:
    if suffix.endswith(".gz"):
        return gzip.decompress(content)
    if suffix.endswith(".bz2"):
        return bz2.decompress(content)
    if suffix.endswith(".xz"):
        return lzma.decompress(content)
    if suffix.endswith(".zst"):
        reader = pyarrow.BufferReader(content)
        return bytes(pyarrow.CompressedInputStream(reader, "zstd").read())
    return content


def json_lines(values: Values) -> bytes:
    """One object a line; bytes stand there as a line of their own, None is null."""
    return b"".join(
        (value if isinstance(value, bytes) else json.dumps({"text": value}).encode()) + b"\n"
        for value in values
    )


def text(values: Values, separator: str) -> bytes:
    raw = [value if isinstance(value, bytes) else (value or "").encode() for value in values]
    return separator.encode().join(raw) + separator.encode()


def _packed(
    pack: Callable[[bytes], bytes], write: Callable[[Values], bytes]
) -> Callable[[Values], bytes]:
    return lambda values: pack(write(values))


def _line_forms() -> Iterator[Form]:
    def whole(values: Values) -> bytes:
        return text(values, "\n")

    def separated(values: Values) -> bytes:
        return text(values, SEPARATOR)

    for name, (suffix, pack, sealed) in PACKERS.items():
        words = f" {name}" if name else ""
        yield Form(f"jsonl{words}", f".jsonl{suffix}", _packed(pack, json_lines), sealed)
        yield Form(f"text{words}", f".txt{suffix}", _packed(pack, whole), sealed)
        packed = _packed(pack, separated)
        yield Form(f"text separated{words}", f".txt{suffix}", packed, sealed, SEPARATOR)


FORMS = {form.name: form for form in (*PARQUET, *_arrow_forms(), *_line_forms())}
