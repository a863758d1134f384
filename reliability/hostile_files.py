"""Files that are wrong as a whole, each with what must be said about it; and giants."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from reliability.hostile_inputs import BOM, arrow, column_of, json_lines, parquet, zstd
from tokenmill.errors import TokenmillError
from tokenmill.inputs.readers.parquet_metadata import text_chunks
from tokenmill.output.result import Result

GOOD = ["a good row", "and another", "東京"]
Expected = str | int  # words of the error, or how many rows there are


def _table(suffix: str, **columns: Any) -> bytes:
    table = pyarrow.table(columns)
    sink = io.BytesIO()
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, sink)
    else:
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _second_magic(pack: Callable[[bytes], bytes]) -> bytes:
    """Two streams, the second one's first bit flipped: many readers would end there in silence."""
    second = bytearray(pack(b"the second half"))
    second[0] ^= 1
    return pack(b"the first half") + second


def _bad_statistics() -> bytes:
    """A flipped bit of the footer that makes pyarrow abort, when asked without a guard."""
    for at in range(len(PARQUET) - 8 - int.from_bytes(PARQUET[-8:-4], "little"), len(PARQUET) - 8):
        for bit in range(8):
            changed = bytearray(PARQUET)
            changed[at] ^= 1 << bit
            try:
                with pyarrow.parquet.ParquetFile(io.BytesIO(changed)) as file:
                    text_chunks("x", file.metadata, "text")
            except TokenmillError as error:
                if "histogram" in error.message:
                    return bytes(changed)
            except (OSError, ValueError, pyarrow.ArrowException):
                continue  # no footer at all
    raise AssertionError("no such bit")


PARQUET = parquet()(GOOD)
STREAM = arrow("stream", "string", None)(GOOD)
ARROW_FILE = arrow("file", "string", None)(GOOD)
LINES = json_lines(GOOD)
DEEP = b"[" * 100_000

# Name: files in order, and what is said of the last one, or how many rows they have together.
WRONG: dict[str, tuple[dict[str, bytes | Callable[[], bytes]], Expected]] = {
    "parquet statistics": ({"x.parquet": _bad_statistics}, "histogram size mismatch"),
    "parquet empty": ({"x.parquet": b""}, "empty"),
    "arrow empty": ({"x.arrow": b""}, "empty"),
    "jsonl empty": ({"x.jsonl": b""}, "empty"),
    "gz empty": ({"x.jsonl.gz": b""}, "empty"),
    "text empty": ({"x.txt": b""}, 1),
    "parquet magic alone": ({"x.parquet": b"PAR1"}, "parquet"),
    "parquet two magics": ({"x.parquet": b"PAR1PAR1"}, "footer"),
    "parquet no rows": ({"a.jsonl": LINES, "x.parquet": _table("parquet", text=column_of([]))}, 3),
    "arrow no rows": ({"a.jsonl": LINES, "x.arrow": _table("arrow", text=column_of([]))}, 3),
    "arrow magic alone": ({"x.arrow": b"ARROW1\0\0"}, "ARROW1"),
    "arrow end mark alone": ({"x.arrow": b"\xff\xff\xff\xff\0\0\0\0"}, "no schema"),
    "arrow without end mark": ({"x.arrow": STREAM[:-8]}, "end mark"),
    "arrow zeros": ({"x.arrow": b"\0" * 4096}, "Arrow"),
    "gz header alone": ({"x.jsonl.gz": b"\x1f\x8b\x08\0\0\0\0\0\0\xff"}, "decompressed"),
    "zst header alone": ({"x.jsonl.zst": b"\x28\xb5\x2f\xfd"}, "decompressed"),
    "xz header alone": ({"x.jsonl.xz": b"\xfd7zXZ\0"}, "decompressed"),
    "bz2 header alone": ({"x.txt.bz2": b"BZh9"}, "cannot be read"),
    "zst empty frame": ({"a.jsonl": LINES, "x.jsonl.zst": zstd(b"")}, 3),
    "zst garbage behind": ({"x.txt.zst": zstd(b"text") + b"garbage"}, "cannot be read"),
    "gz second magic": ({"x.txt.gz": _second_magic(gzip.compress)}, "cannot be read"),
    "zst second magic": ({"x.txt.zst": _second_magic(zstd)}, "cannot be read"),
    "xz second magic": ({"x.txt.xz": _second_magic(lzma.compress)}, "cannot be read"),
    "bz2 second magic": ({"x.txt.bz2": _second_magic(bz2.compress)}, "cannot be read"),
    "gz two members": ({"x.jsonl.gz": gzip.compress(LINES) + gzip.compress(LINES)}, 6),
    "zst two frames": ({"x.jsonl.zst": zstd(LINES) + zstd(LINES)}, 6),
    "xz two streams": ({"x.jsonl.xz": lzma.compress(LINES) + lzma.compress(LINES)}, 6),
    "bz2 two streams": ({"x.jsonl.bz2": bz2.compress(LINES) + bz2.compress(LINES)}, 6),
    "gz behind a bom": ({"x.jsonl.gz": BOM + b"\x1f\x8b"}, "does not begin like"),
    "parquet as jsonl": ({"x.jsonl": PARQUET}, "looks like parquet"),
    "parquet as arrow": ({"x.arrow": PARQUET}, "Arrow"),
    "arrow as parquet": ({"x.parquet": ARROW_FILE}, "PAR1 missing"),
    "arrow as jsonl": ({"x.jsonl": ARROW_FILE}, "looks like arrow"),
    "jsonl as parquet": ({"x.parquet": LINES}, "PAR1 missing"),
    "gz as jsonl": ({"x.jsonl": b"\x1f\x8b\x08" + LINES}, "looks like gz"),
    "zst as text": ({"x.txt": zstd(LINES)}, "looks like zst"),
    "text as zst": ({"x.txt.zst": LINES}, "does not begin like"),
    "json array": ({"x.json": json.dumps([{"text": "a"}]).encode()}, 1),
    "first line nested": ({"x.jsonl": b'{"z": ' + DEEP + b"\n" + LINES}, "nested too deeply"),
    "only a nested line": ({"x.jsonl": DEEP}, "JSON array"),
    "jsonl blank": ({"a.jsonl": LINES, "x.jsonl": b"\n \n\t\n"}, 3),
    "jsonl bom": ({"x.jsonl": BOM + LINES}, 3),
    "jsonl bom alone": ({"a.jsonl": LINES, "x.jsonl": BOM}, 3),
    "jsonl windows": ({"x.jsonl": LINES.replace(b"\n", b"\r\n")}, 3),
    "jsonl no end of line": ({"x.jsonl": LINES[:-1]}, 3),
    "jsonl utf-16": ({"x.jsonl": LINES.decode().encode("utf-16")}, "x.jsonl: row 0"),
    "jsonl latin-1": ({"x.jsonl": b'{"text": "caf\xe9"}\n'}, "UTF-8"),
    "jsonl missing field": ({"a.jsonl": LINES, "x.jsonl": b'{"body": "a"}\n'}, "no field 'text'"),
    "jsonl numbers": ({"x.jsonl": b'{"text": 1}\n'}, "where text should be"),
    "jsonl surrogate": ({"x.jsonl": b'{"text": "\\ud800"}\n'}, "x.jsonl: row 0"),
    "parquet missing column": (
        {"a.parquet": PARQUET, "x.parquet": _table("parquet", body=["a"])},
        "no column 'text'",
    ),
    "parquet numbers": (
        {"a.parquet": PARQUET, "x.parquet": _table("parquet", text=[1, 2])},
        "is int64, not text",
    ),
    "parquet lists": (
        {"a.parquet": PARQUET, "x.parquet": _table("parquet", text=[["a"], ["b"]])},
        "not text",
    ),
    "parquet nothing but nulls": (
        {"a.parquet": PARQUET, "x.parquet": _table("parquet", text=pyarrow.nulls(3))},
        "is null, not text",
    ),
    "arrow missing column": (
        {"a.arrow": STREAM, "x.arrow": _table("arrow", body=["a"])},
        "no column 'text'",
    ),
    "arrow numbers": (
        {"a.arrow": STREAM, "x.arrow": _table("arrow", text=[1.5])},
        "is double, not text",
    ),
    "string and large_string": (
        {
            "a.parquet": PARQUET,
            "b.parquet": _table("parquet", text=column_of(GOOD, pyarrow.large_string())),
            "c.arrow": STREAM,
            "x.arrow": arrow("file", "large_string", "zstd")(GOOD),
            "y.arrow": arrow("stream", "string_view", None)(GOOD),
            "z.arrow": arrow("stream", "dictionary", None)(GOOD),
        },
        18,
    ),
}


def check_wrong(
    name: str,
    folder: Path,
    prepare: Callable[..., Result],
    check_error: Callable[[TokenmillError, str, str], None],
) -> None:
    """What is said, of which file; or that all rows are there."""
    files, expected = WRONG[name]
    paths = [folder / file for file in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_bytes(content if isinstance(content, bytes) else content())
    outcome: Result | TokenmillError
    try:
        outcome = prepare(paths, folder / "out")
    except TokenmillError as error:
        outcome = error
    if isinstance(expected, int):
        assert isinstance(outcome, Result), outcome.message
        counts = outcome.manifest.counts
        assert counts["rows"] == expected == counts["documents"], counts
    else:
        assert isinstance(outcome, TokenmillError), f"no error, but {outcome.manifest.counts}"
        check_error(outcome, paths[-1].name, "")
        assert expected in outcome.message, outcome.message


# --- giants ----------------------------------------------------------------------------------

WORDS = "three hundred megabytes of words in one document, and no end in sight; "


def _long(size: int) -> str:
    return WORDS * (size // len(WORDS) + 1)


def _write_lines(path: Path, size: int) -> int:
    path.with_suffix(".jsonl").write_bytes(json_lines(["before", _long(size), "after"]))
    return 3


def _write_text(path: Path, size: int) -> int:
    path.with_suffix(".txt").write_text(_long(size))
    return 1


def _write_value(path: Path, size: int) -> int:
    table = pyarrow.table({"text": ["before", _long(size), "after"]})
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"), use_dictionary=False)
    return 3


def _write_arrow_value(path: Path, size: int) -> int:
    path.with_suffix(".arrow").write_bytes(
        arrow("stream", "large_string", None)(["before", _long(size), "after"])
    )
    return 3


def _write_bomb(path: Path, size: int) -> int:
    """A thousand times as much text as there are bytes."""
    line = json_lines(["the same row again, and again, and again " * 20])
    rows = size // len(line) + 1
    packed = zstd(line * rows)
    assert len(packed) * 1000 < rows * len(line) or size < 1 << 25, "no bomb"
    path.with_suffix(".jsonl.zst").write_bytes(packed)
    return rows


def _write_row_group(path: Path, size: int) -> int:
    """Over 2 GB of text in one row group, where the others are 300 MB: int32 counts no more."""
    chunk = pyarrow.array([_long(1 << 20)] * 16)
    column = pyarrow.chunked_array([chunk] * (size * 15 // 2 // (16 << 20) + 1))
    pyarrow.parquet.write_table(
        pyarrow.table({"text": column}),
        path.with_suffix(".parquet"),
        row_group_size=len(column),
        compression="zstd",
        use_dictionary=False,
    )
    return len(column)


GIANTS: dict[str, Callable[[Path, int], int]] = {
    "line": _write_lines,
    "text": _write_text,
    "parquet value": _write_value,
    "arrow value": _write_arrow_value,
    "zstd bomb": _write_bomb,
    "row group": _write_row_group,
}


def write_giant(name: str, folder: Path, size: int) -> int:
    """Writes it; returns how many rows it has."""
    return GIANTS[name](folder / "x", size)
