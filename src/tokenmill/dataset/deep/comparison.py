"""The rows of the sources against the streams of a dataset.

Each row that is read must be where it belongs: in its stream, in order, or quarantined. Each
document that is chosen is encoded by the reference and compared token by token. This is a second
implementation on purpose: it shares no code with `tokens/packing.py`, which it checks.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.dataset.deep.key_order import KeyOrder, order_problems
from tokenmill.dataset.deep.mixture import MixtureCheck, copies_in_order
from tokenmill.dataset.deep.origins import Problem, SegmentTask, quarantined_rows, read_again
from tokenmill.dataset.deep.row_problems import quarantine_problems, row_problems
from tokenmill.dataset.loader import Dataset
from tokenmill.dataset.streams import Stream
from tokenmill.dataset.verification import Report
from tokenmill.errors import TokenmillError, VerificationError
from tokenmill.formats.base import Array
from tokenmill.inputs.batch import Batch, set_aside
from tokenmill.inputs.kinds import kind_named, refuse_changed, segments_of
from tokenmill.inputs.source import Source
from tokenmill.settings import PlanSettings
from tokenmill.system.limits import available_cores
from tokenmill.texts import I64, from_bytes
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.decoding import Decoder, open_decoder
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokenizer.encoders.reference import ReferenceEncoderError
from tokenmill.tokens.counts import Counts
from tokenmill.tokens.order import document_keys, held_out_of
from tokenmill.tokens.splits import U64

MAX_PROBLEMS = 20
MAX_THREADS = 16
CACHED_SOURCES = 64  # whose segments are kept: their tasks come in any order
COUNTED = (
    "rows", "documents", "dropped", "quarantined", "not_chosen", "copies", "empty", "tokens",
    "text_bytes",
)  # fmt: skip

Mask = npt.NDArray[np.bool_]


class DeepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and what differs. `files` is what plain verification says."""

    problems: list[Problem]
    files: Report
    mode: str  # time, sample, all
    documents: int = 0  # compared
    documents_total: int = 0
    text_bytes: int = 0
    text_bytes_total: int = 0
    tokens: int = 0
    rows: int = 0  # read again, and found in their place or quarantined
    rows_total: int = 0
    segments: int = 0
    segments_total: int = 0
    reference_failures: int = 0
    complete: bool = False  # every document compared, none missing, none extra
    stopped: str = ""  # why it ended early
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems


class TaskChoice(NamedTuple):
    """A segment, and which of its documents are compared."""

    task: SegmentTask
    choice: Callable[[I64], Mask]  # rows of a batch to those that are compared
    stop_row: float = math.inf  # nothing is wanted from this row on


class ComparedCounts(Counts):
    """As read again. Documents and tokens: those that were compared."""

    compared_bytes: int = 0


class BatchComparison(NamedTuple):
    """Compares batches of rows with the streams; knows no threads, no clock and no source file."""

    settings: PlanSettings
    streams: list[Stream]
    encode: Callable[[bytes], U32]
    decoder: Decoder
    orders: Sequence[KeyOrder] = ()  # where documents have keys: one for each stream
    mixture: MixtureCheck | None = None
    measures: bool = False  # encode also what a mixture does not take

    def problems(
        self, source: Source, batch: Batch, chosen: Mask, counts: ComparedCounts
    ) -> Iterator[Problem]:
        """Each row must be where it belongs, each chosen document what it should be."""
        counts.rows += batch.row_count
        counts.quarantined += batch.bad_rows
        counts.dropped += batch.filtered
        counts.text_bytes += batch.texts.size
        for number, stream in enumerate(self.streams):
            stop_row = batch.first_row + batch.row_count
            documents, stored = stream.documents_of(source.number, batch.first_row, stop_row)
            expected = self._expected(source, batch, number, stored, counts)
            if self.mixture is not None and number == 0:
                expected = self._chosen(source, batch, expected, documents, stored, counts)
            if self.orders:
                self._note_order(source, batch, number, documents, stored)
            yield from row_problems(source.name, stream, documents, stored, batch.rows[expected])
            if number and len(twice := stored[1:][np.diff(stored) == 0]):
                message = f"{source.name}: row {twice[0]} is there twice in {stream.name}"
                yield Problem(message, "row", source.name, int(twice[0]))
            mine = np.isin(stored, batch.rows[expected[chosen[expected]]])
            there = np.searchsorted(batch.rows, stored[mine])
            yield from self._token_problems(
                source.name, batch, stream, there, documents[mine], counts
            )

    def _note_order(
        self, source: Source, batch: Batch, number: int, documents: I64, stored: I64
    ) -> None:
        """Documents that were made from rows of a batch, with the keys of these rows; copies in
        the order of their keys."""
        rows, copies = np.unique(stored, return_counts=True)
        known = np.isin(rows, batch.rows)
        here = np.isin(batch.rows, rows)
        keys = copies_in_order(self._keys(source, batch, here), copies[known])
        mine = np.flatnonzero(np.isin(stored, rows[known]))
        places = self.streams[number].old_places(documents[mine])
        mine = mine[np.lexsort((places, stored[mine]))]
        self.orders[number].note(documents[mine], keys, source.number)

    def _chosen(
        self,
        source: Source,
        batch: Batch,
        candidates: I64,
        documents: I64,
        stored: I64,
        counts: Counts,
    ) -> I64:
        """The documents that a mixture has taken, of those that it could take."""
        assert self.mixture is not None
        rows = batch.rows[candidates]
        there, firsts, often = np.unique(stored, return_index=True, return_counts=True)
        taken = np.isin(rows, there)
        at = np.searchsorted(there, rows[taken])
        copies, lengths = np.zeros((2, len(rows)), np.int64)
        copies[taken] = often[at]
        starts, stops = self.streams[0].spans(documents[firsts[at]])
        lengths[taken] = stops - starts
        for index in np.flatnonzero(~taken).tolist():
            text = batch.texts.document(int(candidates[index]))
            if self.measures or not text.strip():
                ids = self.encode(text)
                lengths[index] = len(with_separator(ids, self.settings))
                counts.empty += len(ids) == 0
        keys = document_keys(self.settings.seed, source, batch.positions[candidates])
        self.mixture.note(source.number, source.name, rows, keys, copies, lengths)
        counts.not_chosen += int((~taken).sum())
        return candidates[taken]

    def _expected(
        self, source: Source, batch: Batch, stream: int, stored: I64, counts: Counts
    ) -> I64:
        """The documents of a batch that belong to a stream: by hash, and not dropped."""
        mask = np.ones(len(batch.rows), bool)
        if len(self.streams) > 1:
            if self.settings.val.kind == "split":
                validation = np.full(len(mask), source.split == "val")
            else:
                validation = held_out_of(self.settings, source, batch.positions)
            mask = validation if stream else ~validation
        if self.settings.drops:
            least = max(self.settings.min_tokens, int(self.settings.drop_empty))
            for index in np.flatnonzero(mask & ~np.isin(batch.rows, stored)):
                # Not stored: right only if its length says so.
                length = len(self.encode(batch.texts.document(int(index))))
                if not least <= length <= (self.settings.max_tokens or length):
                    mask[index] = False
                    counts.dropped += 1
                    counts.empty += length == 0
        if self.orders and self.settings.limited and self.mixture is None:
            left = mask & ~np.isin(batch.rows, stored)
            self.orders[stream].note_left(
                source.name, batch.rows[left], self._keys(source, batch, left)
            )
            counts.not_chosen += int(left.sum())
            texts = (batch.texts.document(int(index)) for index in np.flatnonzero(left))
            counts.empty += sum(len(self.encode(text)) == 0 for text in texts if not text.strip())
            mask &= ~left
        return np.flatnonzero(mask)

    def _keys(self, source: Source, batch: Batch, which: Mask) -> U64:
        return document_keys(self.settings.seed, source, batch.positions[which])

    def _token_problems(
        self,
        name: str,
        batch: Batch,
        stream: Stream,
        indexes: I64,
        documents: I64,
        counts: ComparedCounts,
    ) -> Iterator[Problem]:
        """Documents of a batch, by index, against documents of a stream, by number."""
        if len(documents) == 0:
            return
        seen: dict[int, U32] = {}  # of documents that have copies
        order = np.argsort(documents)  # files are opened once each, also of a shuffled dataset
        indexes, documents = indexes[order], documents[order]
        starts, stops = stream.spans(documents)
        begin, end = int(starts[0]), int(stops[-1])
        near = documents[-1] - documents[0] < 4 * len(documents)
        tokens = stream.read(begin, end) if near else None  # one read instead of many
        for index, document, start, stop in zip(
            indexes.tolist(), documents.tolist(), starts.tolist(), stops.tolist(), strict=True
        ):
            stored = (
                stream.read(start, stop) if tokens is None else tokens[start - begin : stop - begin]
            )
            text = batch.texts.document(index)
            is_copy = index in seen
            ids = seen[index] if is_copy else self.encode(text)
            if stream.repeats:
                seen[index] = ids
            expected = with_separator(ids, self.settings)
            counts.tokens += len(expected)
            counts.copies += is_copy
            counts.documents += not is_copy
            counts.empty += len(ids) == 0 and not is_copy
            counts.compared_bytes += len(text) * (not is_copy)
            if not np.array_equal(stored, expected):
                row = int(batch.rows[index])
                yield self._difference(name, row, stream, document, stored, expected)

    def _difference(
        self, name: str, row: int, stream: Stream, document: int, stored: Array, expected: Array
    ) -> Problem:
        """Where a document differs first."""
        shorter = min(len(stored), len(expected))
        different = np.flatnonzero(stored[:shorter] != expected[:shorter])
        at = int(different[0]) if len(different) else shorter
        start, stop = stream.span(document)
        token = max(start, min(start + at, stop - 1))
        split, number, position = stream.number_in_split(document, token)
        found, wanted = (int(ids[at]) if at < len(ids) else -1 for ids in (stored, expected))
        if len(different):
            here, there = (f"{i} '{self.decoder.shown(i)}'" for i in (found, wanted))
            what = f"token {at} (token {position} of {split}) is {here}, the reference says {there}"
        else:
            what = f"has {len(stored)} tokens, the reference says {len(expected)}"
        message = f"{split} document {number} ({name}, row {row}): {what}"
        place = {"token": at, "expected": wanted, "found": found}
        return Problem(message, "token", name, row, split, number, **place)


def with_separator(ids: U32, settings: PlanSettings) -> npt.NDArray[np.int64]:
    """A document as it should be stored, worked out apart from `tokens/packing.py`."""
    side = settings.first.eot
    before = [settings.eot_id] * (side == "prepend") + [settings.bos_id] * (settings.bos_id >= 0)
    after = [settings.eot_id] * (side == "append")
    return np.concatenate((np.array(before, np.int64), ids, np.array(after, np.int64)))


class Comparison:
    """Compares segments, several at a time; collects problems and counts.

    The reference releases the interpreter, so threads scale (8.1 MB/s with one, 15.7 with two),
    and each holds one batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        encoding: Encoding,
        sources: dict[int, Source],
        streams: list[Stream],
        problems: list[Problem],
        mode: str = "all",
    ) -> None:
        self.manifest, self.settings = dataset.manifest, dataset.settings
        self.sources, self.problems = sources, problems
        self.encoder = ExactEncoder(encoding, "reference")
        _ = self.encoder.reference  # opened here, once, before threads ask for it
        decoder = open_decoder(encoding, self.settings)
        self.orders = [KeyOrder(one) for one in streams if self.settings.by_key]
        self.mixture: MixtureCheck | None = None
        if self.settings.mixture is not None:
            self.mixture = MixtureCheck(self.settings.mixture, self.manifest.sources)
        self.batches = BatchComparison(
            self.settings, streams, self._ids, decoder, self.orders, self.mixture, mode == "all"
        )
        self.quarantined = quarantined_rows(dataset.store, self.manifest)
        self.fatal: dict[str, dict[int, str]] = {}  # rows that ended a worker, by source
        self.damaged = {r["source"] for r in self.manifest.set_aside if "rows" in r}
        for record in (one for one in self.manifest.set_aside if "rows" not in one):
            self.fatal.setdefault(record["source"], {})[record["row"]] = record["reason"]
        self.deadline = math.inf
        self.counts = [ComparedCounts() for _ in self.manifest.sources]
        self.rows_seen: dict[tuple[int, int], int] = {}  # of each segment, in its longest pass
        self._segments = functools.lru_cache(CACHED_SOURCES)(
            lambda source: {s.number: s for s in segments_of(source, self.settings.reading)}
        )
        self._lock = threading.Lock()
        self._encoder_lock = threading.Lock()
        self._failure: BaseException | None = None

    @property
    def compared_bytes(self) -> int:
        return sum(counts.compared_bytes for counts in self.counts)

    def run(
        self,
        work: Iterable[TaskChoice],
        threads: int | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        queue = iter(work)
        count = threads or min(MAX_THREADS, available_cores())
        workers = [
            threading.Thread(target=self._work, args=(queue,), daemon=True) for _ in range(count)
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.2)
                    if on_progress:
                        on_progress(self.compared_bytes, self.manifest.counts["text_bytes"])
        finally:
            self.deadline = -math.inf  # after Ctrl-C the threads stop at the next batch
        if self._failure is not None:
            raise self._failure

    def _work(self, queue: Iterator[TaskChoice]) -> None:
        try:
            while not self._is_over():
                with self._lock:
                    work = next(queue, None)
                if work is None:
                    return
                source = self.sources[work.task.source]
                try:
                    self._compare_segment(source, work)
                except TokenmillError as error:
                    kind = "index" if isinstance(error, VerificationError) else "source"
                    self.problems.append(Problem(error.message, kind, source.name))
        except BaseException as error:
            self._failure = error

    def _is_over(self) -> bool:
        return (
            self._failure is not None
            or len(self.problems) >= MAX_PROBLEMS
            or time.monotonic() >= self.deadline
        )

    def _compare_segment(self, source: Source, work: TaskChoice) -> None:
        task, name = work.task, source.name
        segment = self._segments(source).get(task.segment)
        if segment is None:
            message = f"{name}: has no segment {task.segment}, which index/units names"
            self.problems.append(Problem(message, "index", name))
            return
        row = task.first_row
        ranges = name in self.damaged
        for batch in read_again(source, segment, self.settings, task, ranges=ranges):
            self._compare_batch(source, set_aside(batch, self.fatal.get(name, {})), work)
            row += batch.row_count
            with self._lock:
                seen = self.rows_seen.get((task.source, task.segment), 0)
                self.rows_seen[task.source, task.segment] = max(seen, row - task.first_row)
            if row >= work.stop_row or self._is_over():
                return
        refuse_changed(source)
        if row != task.first_row + task.rows:
            message = (
                f"{name}: rows {task.first_row} to {row - 1} were read, index/units says "
                f"{task.rows} rows"
            )
            self.problems.append(Problem(message, "row", name))

    def _compare_batch(self, source: Source, batch: Batch, work: TaskChoice) -> None:
        counts = ComparedCounts()
        listed, chosen = self.quarantined[source.number], work.choice(batch.rows)
        batches, has_text = self.batches, not kind_named(source.kind).holds_ids
        if not has_text:  # a prepared dataset: its ids are what is expected
            batches = batches._replace(encode=lambda ids: np.frombuffer(ids, np.uint32))
        for problem in itertools.chain(
            quarantine_problems(source.name, batch, listed),
            batches.problems(source, batch, chosen, counts),
        ):
            self.problems.append(problem)
            if self._is_over():
                break
        counts.text_bytes *= has_text
        with self._lock:
            self.counts[source.number].add(counts)

    def _ids(self, document: bytes) -> U32:
        """The reference's ids; where it fails, the fast encoder's, as when it was made."""
        try:
            return self.encoder.reference.encode_document(document)
        except ReferenceEncoderError:
            with self._encoder_lock:
                return self.encoder.encode(from_bytes([document]))[0]

    def report(self, mode: str, files: Report, segments: int, seconds: float) -> DeepReport:
        totals = self.manifest.counts
        documents = sum(counts.documents for counts in self.counts)
        rows = sum(self.rows_seen.values())
        all_rows = totals["rows"]
        if self.settings.only:
            all_rows = sum(self.manifest.sources[number]["rows"] for number in self.sources)
        complete = documents == totals["documents"] and rows == all_rows
        self.problems += order_problems(self.orders)
        if self.mixture is not None and len(self.problems) < MAX_PROBLEMS:
            every_row = mode == "all" and rows == all_rows and not self.problems
            self.problems += self.mixture.problems(self.manifest.sources, self.sources, every_row)
        if mode == "all" and len(self.problems) < MAX_PROBLEMS:
            self.problems += self._count_problems()
        stopped = ""
        if len(self.problems) >= MAX_PROBLEMS:
            stopped = f"stopped after {len(self.problems)} problems"
        elif mode == "time" and not complete and not self.problems:
            stopped = "time is over"
        return DeepReport(
            problems=self.problems,
            files=files,
            mode=mode,
            documents=documents,
            documents_total=totals["documents"],
            text_bytes=self.compared_bytes,
            text_bytes_total=totals["text_bytes"],
            tokens=sum(counts.tokens for counts in self.counts),
            rows=rows,
            rows_total=all_rows,
            segments=len(self.rows_seen),
            segments_total=segments,
            reference_failures=self.encoder.stats.reference_failures,
            complete=complete and not self.problems,
            stopped=stopped,
            seconds=round(seconds, 3),
        )

    def _count_problems(self) -> Iterator[Problem]:
        """Every row read again: the manifest's counts must come out, source by source."""
        for number in self.sources:
            entry = self.manifest.sources[number]
            told = {field: entry.get(field, 0) for field in COUNTED}
            counted = {field: getattr(self.counts[number], field) for field in COUNTED}
            if entry.get("train", {}).get("bound"):
                # Of a source that may be encoded in part: rows beyond the last one that is taken
                # count as not chosen, also those that are empty or would be dropped.
                for counts in (told, counted):
                    counts["not_chosen"] += counts.pop("dropped")
                    del counts["empty"]
            for field, found in counted.items():
                if told[field] != found:
                    name, said = entry["name"], told[field]
                    message = f"{name}: the manifest says {said} {field}, its rows give {found}"
                    yield Problem(message, "count", name, expected=found, found=said)
