"""Two seconds of the real work, on pieces spread over the inputs: what `plan` estimates from.

The reader and the encoder are those of a run. Measured are text and tokens for each byte of
input, apart for each kind of file, and the speed of one core. Nothing is written.
"""

from __future__ import annotations

import bz2
import lzma
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.batch import Batch
from tokenmill.config import EncoderChoice
from tokenmill.documents import read_segment
from tokenmill.encoders import ExactEncoder
from tokenmill.encoders.unicode_gap import shipped_gap
from tokenmill.parquet_footer import row_counts, text_sizes
from tokenmill.plan import BATCH_BYTES, Plan, Segment, segments_of
from tokenmill.sources import Source, open_parquet
from tokenmill.texts import I64, from_bytes
from tokenmill.tokenizer import Encoding

PROBE_SECONDS = 2.0
ATTEMPTS = 4096
HEAD_BYTES = 1 << 20  # of a compressed file, to see how far it expands
COUNT_COLUMN = "token_count"


class Measured(msgspec.Struct):
    """Sums over what was read of one kind of file."""

    input_bytes: float = 0.0
    text_bytes: int = 0
    rows: int = 0
    documents: int = 0
    tokens: int = 0  # without separators

    def add(self, other: Measured) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Probe(msgspec.Struct, kw_only=True):
    kinds: dict[str, Measured] = {}
    seconds: float = 0.0
    speed: float = 0.0  # bytes of text a second, one core, reading and encoding
    counted_documents: int = 0  # compared with the column token_count
    counted_differ: int = 0
    counted_said: int = 0  # tokens of these by token_count, and by the encoder
    counted_found: int = 0

    @property
    def all(self) -> Measured:
        total = Measured()
        for measured in self.kinds.values():
            total.add(measured)
        return total

    def of(self, source: Source) -> Measured:
        """What was measured for files like this one, or for all where none was read."""
        found = self.kinds.get(kind_of(source))
        return found if found is not None and found.input_bytes else self.all


def kind_of(source: Source) -> str:
    return f"{source.kind}.{source.compression}" if source.compression else source.kind


class _Cut(NamedTuple):
    """How a source is cut; for parquet, the rows and the bytes of text of each row group."""

    segments: list[Segment]
    group_rows: list[int]
    group_text: list[int]


class _Visits:
    """Segments in an order that soon comes by every kind and every part of the input."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ends = np.cumsum([source.size for source in plan.sources])
        self.cuts: dict[int, _Cut] = {}
        self.seen: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[tuple[Source, Segment]]:
        largest: dict[str, Source] = {}
        for source in self.plan.sources:
            best = largest.setdefault(kind_of(source), source)
            if source.size > best.size:
                largest[kind_of(source)] = source
        for source in largest.values():
            yield from self._segment(source, 0.5)
        total = int(self.ends[-1])
        for attempt in range(1, ATTEMPTS):
            position = _bit_reversed(attempt) * total
            number = min(len(self.ends) - 1, int(np.searchsorted(self.ends, position, "right")))
            source = self.plan.sources[number]
            inside = 1 - (float(self.ends[number]) - position) / max(1, source.size)
            yield from self._segment(source, inside)

    def cut(self, source: Source) -> _Cut:
        if source.number not in self.cuts:
            segments = list(segments_of(source, self.plan.settings.reading))
            rows: list[int] = []
            texts: list[int] = []
            if source.kind == "parquet":
                with open_parquet(source.path) as file:
                    rows = row_counts(source.name, file.metadata)
                    column = self.plan.settings.text_column
                    texts = text_sizes(source.name, file.metadata, column)
            self.cuts[source.number] = _Cut(segments, rows, texts)
        return self.cuts[source.number]

    def _segment(self, source: Source, inside: float) -> Iterator[tuple[Source, Segment]]:
        # A range inside a row group is found by decoding all before it: only first ones.
        segments = [s for s in self.cut(source).segments if s.text_start == 0]
        if not segments:
            return
        segment = segments[min(len(segments) - 1, max(0, int(inside * len(segments))))]
        if (source.number, segment.number) not in self.seen:
            self.seen.add((source.number, segment.number))
            yield source, segment


def _bit_reversed(number: int) -> float:
    """1/2, 1/4, 3/4, 1/8 ...: each new one falls into the largest gap."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())


def run_probe(
    plan: Plan, encoding: Encoding, encoder: EncoderChoice, seconds: float = PROBE_SECONDS
) -> Probe:
    """Read and encode the beginning of segments until the time is over or all are seen."""
    # The shipped table of newer characters, also where another would have to be computed for
    # half a minute; `--encoder gigatoken` would stop at them, which is for the run to say.
    gap = () if encoder == "gigatoken" else shipped_gap(encoding.kind)
    opened = ExactEncoder(encoding, encoder, gap)
    opened.encode(from_bytes([b"whatever is loaded on first use"]))
    visits = _Visits(plan)
    probe = Probe(kinds={})
    began = time.monotonic()
    timed: list[tuple[int, float]] = []
    # Each kind of file is tried, however slow the machine: they expand too differently.
    kinds = len({kind_of(source) for source in plan.sources})
    for number, (source, segment) in enumerate(visits, 1):
        for batch, measured, offsets, taken in _visit(plan, source, segment, opened):
            measured.input_bytes = _input_bytes(source, segment, batch, visits.cut(source))
            timed.append((measured.text_bytes, taken))
            probe.kinds.setdefault(kind_of(source), Measured()).add(measured)
            _compare_counts(source, batch, offsets, visits.cut(source), probe)
            if time.monotonic() - began >= seconds:
                break
        if number >= kinds and time.monotonic() - began >= seconds:
            break
    probe.seconds = time.monotonic() - began
    probe.speed = _speed(timed)
    return probe


def _visit(
    plan: Plan, source: Source, segment: Segment, encoder: ExactEncoder
) -> Iterator[tuple[Batch, Measured, I64, float]]:
    """The first batches of a segment, one encoder's batch of text together, and their time."""
    batches = read_segment(source, segment, plan.settings.reading)
    size = 0
    while size < BATCH_BYTES:
        start = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            return
        ids, offsets = encoder.encode(batch.texts)
        taken = time.monotonic() - start
        size += batch.size
        measured = Measured(
            text_bytes=batch.texts.size,
            rows=batch.row_count,
            documents=batch.texts.documents,
            tokens=len(ids),
        )
        yield batch, measured, offsets, taken


def _speed(timed: list[tuple[int, float]]) -> float:
    """Of the later half: the encoder's cache of words is cold at first, and warm for long."""
    later = timed[len(timed) // 2 :] if len(timed) >= 4 else timed
    return sum(size for size, _ in later) / max(1e-6, sum(seconds for _, seconds in later))


def _input_bytes(source: Source, segment: Segment, batch: Batch, cut: _Cut) -> float:
    """How much of the file, as it lies on disk, this batch stands for."""
    if source.kind == "parquet":
        size = sum(s.size for s in cut.segments if s.start == segment.start)
        if batch.fragment is not None:  # a piece of a long row, by its share of the text
            text = sum(cut.group_text[segment.start : segment.stop])
            return size * min(1.0, batch.texts.size / max(1, text))
        rows = sum(cut.group_rows[segment.start : segment.stop])
        return size * min(1.0, batch.row_count / max(1, rows))
    if source.kind == "arrow":
        return source.size * min(1.0, batch.row_count / max(1, source.rows))
    read = float(batch.texts.size)
    if len(batch.positions) > 1:  # from the first line to the last, and the last as an average
        read = int(batch.positions[-1] - batch.positions[0]) * len(batch.positions)
        read /= len(batch.positions) - 1
    if source.compression:
        read /= expansion(source.path, source.compression)
    return max(1.0, min(read, float(segment.size)))


def expansion(path: str, compression: str) -> float:
    """Bytes out for each byte in, of the beginning of a compressed file."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    try:
        if compression == "zst":
            return max(1e-3, _zstd_size(head) / len(head))
        makers: dict[str, Any] = {
            "gz": lambda: zlib.decompressobj(31),
            "bz2": bz2.BZ2Decompressor,
            "xz": lzma.LZMADecompressor,
        }
        size, rest = 0, head
        while rest:  # one member after the other
            decompressor = makers[compression]()
            size += len(decompressor.decompress(rest))
            if not decompressor.eof:
                break
            rest = decompressor.unused_data
        return max(1e-3, size / len(head))
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return 1.0  # the run will say what is wrong with it


def _zstd_size(head: bytes) -> int:
    import pyarrow

    size = 0
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(head), "zstd") as stream:
            while piece := stream.read(1 << 20):
                size += len(piece)
    except OSError:
        pass  # the head ends in the middle of a frame
    return size


def _compare_counts(source: Source, batch: Batch, offsets: I64, cut: _Cut, probe: Probe) -> None:
    """Is the column token_count, where there is one, what this tokenizer gives?"""
    if source.kind != "parquet" or batch.row_count == 0:
        return
    said = _said_counts(source, batch, cut)
    if said is None:
        return
    good = batch.rows - batch.first_row
    probe.counted_documents += len(good)
    probe.counted_differ += int(np.count_nonzero(said[good] != np.diff(offsets)))
    probe.counted_said += int(np.nansum(said[good]))
    probe.counted_found += int(offsets[-1])


def _said_counts(source: Source, batch: Batch, cut: _Cut) -> npt.NDArray[Any] | None:
    """The column's values for the batch; None where there is none, or it cannot be read."""
    import pyarrow

    ends = np.cumsum(cut.group_rows)
    first, last = np.searchsorted(
        ends, [batch.first_row, batch.first_row + batch.row_count - 1], side="right"
    ).tolist()
    before = int(ends[first]) - cut.group_rows[first]
    try:
        with open_parquet(source.path) as file:
            if not has_counts(file.schema_arrow):
                return None
            groups = list(range(first, last + 1))
            column = file.read_row_groups(groups, columns=[COUNT_COLUMN]).column(0)
        said = column.slice(batch.first_row - before, batch.row_count).to_numpy()
    except (OSError, ValueError, pyarrow.ArrowException):
        return None
    return said if len(said) == batch.row_count else None


def has_counts(schema: Any) -> bool:
    from pyarrow import types

    return schema.names.count(COUNT_COLUMN) == 1 and bool(
        types.is_integer(schema.field(COUNT_COLUMN).type)
    )
