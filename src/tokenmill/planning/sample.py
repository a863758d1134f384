"""Two seconds of the real work, on pieces spread over the inputs: what `plan` estimates from.

The reader and the encoder are those of a run. Measured are text and tokens for each byte of
input, apart for each kind of file, and the speed of one core. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tokenmill.errors import TooLargeError
from tokenmill.inputs.batch import Batch
from tokenmill.inputs.kinds import kind_named, read_segment, reading_for, segments_of
from tokenmill.inputs.readers.parquet_metadata import open_parquet, row_counts
from tokenmill.inputs.rows.prepared import ID_BYTES
from tokenmill.inputs.segments import BATCH_BYTES, Segment
from tokenmill.inputs.source import Source
from tokenmill.planning.plan import Plan
from tokenmill.planning.sorted_inputs import StreamPart
from tokenmill.settings import EncoderChoice
from tokenmill.system.memory import MemoryShare
from tokenmill.texts import I64, from_bytes
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder

PROBE_SECONDS = 2.0
MAX_VISITS = 4096
SAMPLE_BYTES = 2_000_000_000  # of memory, for what must be held whole
COUNT_COLUMN = "token_count"
LANGUAGE_COLUMNS = ("language", "lang")


class KindTotals(msgspec.Struct):
    """Sums over what was read of one kind of file."""

    input_bytes: float = 0.0
    text_bytes: int = 0
    rows: int = 0
    documents: int = 0
    tokens: int = 0  # without separators

    def add(self, other: KindTotals) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Sample(msgspec.Struct, kw_only=True):
    kinds: dict[str, KindTotals] = {}
    seconds: float = 0.0
    speed: float = 0.0  # bytes of text a second, one core, reading and encoding
    counted_documents: int = 0  # compared with the column token_count
    counted_differ: int = 0
    counted_said: int = 0  # tokens of these by token_count, and by the encoder
    counted_found: int = 0
    parts: list[StreamPart] = []

    @property
    def all(self) -> KindTotals:
        total = KindTotals()
        for totals in self.kinds.values():
            total.add(totals)
        return total

    def of(self, source: Source) -> KindTotals:
        """What was measured for files like this one, or for all where none was read."""
        found = self.kinds.get(kind_of(source))
        return found if found is not None and found.input_bytes else self.all

    def add(self, source: Source, totals: KindTotals) -> None:
        self.kinds.setdefault(kind_of(source), KindTotals()).add(totals)


def kind_of(source: Source) -> str:
    """Files that are measured together; of a mixture, those of one of its sources."""
    kind = f"{source.kind}.{source.compression}" if source.compression else source.kind
    return f"{source.mix}/{kind}" if source.mix else kind


def with_text(plan: Plan) -> Plan:
    """A plan without prepared datasets, of which nothing is encoded."""
    texts = tuple(one for one in plan.sources if not kind_named(one.kind).holds_ids)
    return msgspec.structs.replace(plan, sources=texts)


def note_prepared(plan: Plan, sample: Sample) -> None:
    """Add what prepared datasets hold: documents and ids are known, and there is no text."""
    for source in plan.sources:
        if kind_named(source.kind).holds_ids:
            ids = source.size // ID_BYTES
            sample.add(source, KindTotals(source.size, 0, source.rows, source.rows, ids))


def take_sample(
    plan: Plan,
    encoding: Encoding,
    encoder: EncoderChoice,
    seconds: float = PROBE_SECONDS,
    visits: int = MAX_VISITS,
    visit_bytes: int = BATCH_BYTES,
) -> Sample:
    """Read and encode the beginning of segments until the time is over or all are seen; of no more
    segments than `visits`, and of each kind of file. `visit_bytes`: of text, at each place."""
    # `--encoder gigatoken` would stop at a document that needs the reference; the run says so.
    opened = ExactEncoder(encoding, "auto" if encoder == "gigatoken" else encoder)
    opened.encode(from_bytes([b"whatever is loaded on first use"]))
    sample = Sample()
    began = time.monotonic()
    timed: list[tuple[int, float]] = []
    # Each kind of file is tried, however slow the machine: they expand too differently.
    kinds = len({kind_of(source) for source in plan.sources})
    for number, (source, segment, extent) in enumerate(_visits(plan), 1):
        kind, reading = kind_named(source.kind), reading_for(source, plan.settings.reading)
        for batch, offsets, taken in _first_batches(plan, source, segment, opened, visit_bytes):
            timed.append((batch.texts.size, taken))
            totals = KindTotals(
                input_bytes=kind.input_bytes(source, segment, batch, reading),
                text_bytes=batch.texts.size,
                rows=batch.row_count,
                documents=batch.texts.documents,
                tokens=int(offsets[-1]),
            )
            sample.add(source, totals)
            known = totals.text_bytes, totals.tokens, totals.documents
            sample.parts.append(StreamPart(*extent, *known, _languages(source, batch)))
            _compare_counts(source, batch, offsets, sample)
            if time.monotonic() - began >= seconds:
                break
        if number >= kinds and (time.monotonic() - began >= seconds or number >= visits):
            break
    sample.seconds = time.monotonic() - began
    sample.speed = _speed(timed)
    return sample


def _visits(plan: Plan) -> Iterator[tuple[Source, Segment, tuple[float, float]]]:
    """Each segment once, in an order that soon comes by every kind and every part of the input;
    and from where to where in the input the segment is, from 0 to 1."""
    ends = dict(zip(plan.sources, np.cumsum([s.size for s in plan.sources]), strict=True))
    total = max(1, plan.input_bytes)
    segments: dict[int, list[Segment]] = {}
    seen: set[tuple[int, int]] = set()
    for source, inside in _spread(plan.sources):
        if source.number not in segments:
            # A range inside a row group is found by decoding all before it: only first ones.
            found = segments_of(source, plan.settings.reading)
            segments[source.number] = [s for s in found if s.text_start == 0]
        mine = segments[source.number]
        if not mine:
            continue
        chosen = min(len(mine) - 1, max(0, int(inside * len(mine))))
        segment = mine[chosen]
        if (source.number, segment.number) not in seen:
            seen.add((source.number, segment.number))
            begin = float(ends[source]) - source.size
            start, stop = (
                (begin + source.size * at / len(mine)) / total for at in (chosen, chosen + 1)
            )
            yield source, segment, (start, stop)


def _spread(sources: Sequence[Source]) -> Iterator[tuple[Source, float]]:
    """A source and how far into it: the largest of each kind first, then all over the input."""
    largest: dict[str, Source] = {}
    for source in sources:
        if source.size > largest.setdefault(kind_of(source), source).size:
            largest[kind_of(source)] = source
    yield from ((source, 0.5) for source in largest.values())
    ends = np.cumsum([source.size for source in sources])
    for attempt in range(1, MAX_VISITS):
        position = _bit_reversed(attempt) * int(ends[-1])
        number = min(len(ends) - 1, int(np.searchsorted(ends, position, "right")))
        source = sources[number]
        yield source, 1 - (float(ends[number]) - position) / max(1, source.size)


def _bit_reversed(number: int) -> float:
    """1/2, 1/4, 3/4, 1/8 ...: each new one falls into the largest gap."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())


def _first_batches(
    plan: Plan, source: Source, segment: Segment, encoder: ExactEncoder, most: int
) -> Iterator[tuple[Batch, I64, float]]:
    """The first batches of a segment, `most` bytes of text together or more: ends and time."""
    batches = read_segment(source, segment, plan.settings.reading, room=MemoryShare(SAMPLE_BYTES))
    size = 0
    while size < most:
        start = time.monotonic()
        try:
            batch = next(batches, None)
        except TooLargeError:  # a run says how much memory it takes
            return
        if batch is None:
            return
        if most < BATCH_BYTES and batch.fragment is None:
            batch = _beginning(batch, most)
        _, offsets = encoder.encode(batch.texts)
        taken = time.monotonic() - start
        size += batch.size
        yield batch, offsets, taken


def _beginning(batch: Batch, size: int) -> Batch:
    """The first documents of a batch, of about so many bytes."""
    count = int(np.searchsorted(batch.texts.offsets, batch.texts.offsets[0] + size))
    return batch if count >= len(batch.rows) else batch.until(int(batch.rows[count]))


def _speed(timed: list[tuple[int, float]]) -> float:
    """The speed of the later half: the encoder's cache of words is cold only at first."""
    later = timed[len(timed) // 2 :] if len(timed) >= 4 else timed
    return sum(size for size, _ in later) / max(1e-6, sum(seconds for _, seconds in later))


def _compare_counts(source: Source, batch: Batch, offsets: I64, sample: Sample) -> None:
    """Is the column token_count, where there is one, what this tokenizer gives?"""
    if source.kind != "parquet" or batch.row_count == 0:
        return
    values = _column(source, batch, has_counts)
    if values is None:
        return
    said = values.to_numpy()
    good = batch.rows - batch.first_row
    sample.counted_documents += len(good)
    sample.counted_differ += int(np.count_nonzero(said[good] != np.diff(offsets)))
    sample.counted_said += int(np.nansum(said[good]))
    sample.counted_found += int(offsets[-1])


def _languages(source: Source, batch: Batch) -> dict[str, int]:
    """How many documents of a batch are in which language, if the file says so."""
    if source.kind != "parquet" or batch.row_count == 0:
        return {}
    values = _column(source, batch, _language_column)
    if values is None:
        return {}
    counts = values.take(batch.rows - batch.first_row).value_counts().to_pylist()
    return {str(one["values"]): one["counts"] for one in counts if one["values"] is not None}


def _column(source: Source, batch: Batch, choose: Callable[[Any], str]) -> Any | None:
    """A column's values for the batch; None where there is none, or it cannot be read. `choose`
    names the column of a schema, or ''."""
    import pyarrow

    rows = [batch.first_row, batch.first_row + batch.row_count - 1]
    try:
        with open_parquet(source.path) as file:
            if not (name := choose(file.schema_arrow)):
                return None
            ends = np.cumsum([0, *row_counts(source.name, file.metadata)])
            first, last = (np.searchsorted(ends, rows, side="right") - 1).tolist()
            groups = list(range(first, last + 1))
            column = file.read_row_groups(groups, columns=[name]).column(0)
        values = column.slice(batch.first_row - int(ends[first]), batch.row_count)
    except (OSError, ValueError, pyarrow.ArrowException):
        return None
    return values if len(values) == batch.row_count else None


def has_counts(schema: Any) -> str:
    """The name of the column that counts tokens, or ''."""
    from pyarrow import types

    there = schema.names.count(COUNT_COLUMN) == 1
    return COUNT_COLUMN * bool(there and types.is_integer(schema.field(COUNT_COLUMN).type))


def _language_column(schema: Any) -> str:
    from pyarrow import types

    for name in LANGUAGE_COLUMNS:
        if schema.names.count(name) == 1:
            kind = schema.field(name).type
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if types.is_string(kind) or types.is_large_string(kind):
                return name
    return ""
