"""Segments of the sources against the streams of a dataset, by threads.

Each row that is read must be where it belongs: in its stream, in order, or set aside. Each
document that is chosen is encoded by the reference and compared token by token. The reference
releases the interpreter, so threads scale (8.1 MB/s with one, 15.7 with two), and each holds one
batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.batch import Batch
from tokenmill.config import PlanSettings, available_cores
from tokenmill.documents import refuse_changed
from tokenmill.encoders import ExactEncoder
from tokenmill.encoders.decoding import Decoder
from tokenmill.encoders.fast import U32
from tokenmill.encoders.reference import ReferenceEncoderError
from tokenmill.errors import TokenmillError
from tokenmill.manifest import Counts, Manifest
from tokenmill.origins import Problem, Task
from tokenmill.pack import document_hash
from tokenmill.plan import segments_of
from tokenmill.rereading import read_again
from tokenmill.sources import Source
from tokenmill.texts import I64, from_bytes
from tokenmill.token_streams import Stream
from tokenmill.verification import Report

MAX_PROBLEMS = 20
MAX_THREADS = 16

Mask = npt.NDArray[np.bool_]
Choice = Callable[[I64], Mask]  # rows of a batch to those that are compared
Work = tuple[Task, Choice]


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
    rows: int = 0  # read again, and found in their place or set aside
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


class Rows:
    """Chooses listed rows, and knows after which one nothing more is wanted."""

    def __init__(self, wanted: I64) -> None:
        self.wanted = wanted

    def __call__(self, rows: I64) -> Mask:
        return np.isin(rows, self.wanted)


class _Tally(msgspec.Struct):
    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0

    def add(self, other: _Tally) -> None:
        self.documents += other.documents
        self.text_bytes += other.text_bytes
        self.tokens += other.tokens


class _Expected(NamedTuple):
    """Documents of a batch that belong to one stream."""

    indexes: I64  # in the batch
    rows: I64  # in the source


class Comparison:
    """Compares segments, several at a time; collects problems and counts."""

    def __init__(
        self,
        *,
        settings: PlanSettings,
        manifest: Manifest,
        sources: list[Source | None],
        streams: list[Stream],
        quarantined: list[I64],
        encoder: ExactEncoder,
        decoder: Decoder,
        problems: list[Problem],
    ) -> None:
        self.settings, self.manifest = settings, manifest
        self.sources, self.streams = sources, streams
        self.quarantined = quarantined
        self.fatal = _fatal_rows(manifest)
        self.encoder, self.decoder = encoder, decoder
        _ = encoder.reference  # opened here, once, before threads ask for it
        self.problems = problems
        self.deadline = float("inf")
        self.tally = _Tally()
        self.counts = [Counts() for _ in sources]  # as read again, where all is read
        self.rows_seen: dict[tuple[int, int], int] = {}  # of each segment, in its longest pass
        self.segments_of: dict[int, dict[int, Any]] = {}
        self._lock = threading.Lock()
        self._encoder_lock = threading.Lock()
        self._failure: BaseException | None = None
        self._interrupted = False

    # --- threads -----------------------------------------------------------------------------

    def run(
        self,
        work: Iterable[Work],
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
                        on_progress(self.tally.text_bytes, self.manifest.counts["text_bytes"])
        finally:
            self._interrupted = True  # of Ctrl-C: let go of what they read
        if self._failure is not None:
            raise self._failure

    def _work(self, queue: Iterator[Work]) -> None:
        try:
            while not self._over():
                with self._lock:
                    item = next(queue, None)
                if item is None:
                    return
                try:
                    self._segment(*item)
                except TokenmillError as error:
                    name = self.manifest.sources[item[0].source]["name"]
                    self._report(Problem(kind="source", source=name, message=error.message))
        except BaseException as error:
            self._failure = error

    def _over(self) -> bool:
        return (
            self._interrupted
            or self._failure is not None
            or len(self.problems) >= MAX_PROBLEMS
            or time.monotonic() >= self.deadline
        )

    def _report(self, problem: Problem) -> None:
        with self._lock:
            self.problems.append(problem)

    # --- one segment -------------------------------------------------------------------------

    def _segment(self, task: Task, choice: Choice) -> None:
        source = self.sources[task.source]
        assert source is not None
        segment = self._segments(source).get(task.segment)
        if segment is None:
            message = f"{source.name}: has no segment {task.segment}, which index/units names"
            self._report(Problem(kind="index", source=source.name, message=message))
            return
        done, shift = 0, 0
        for batch in read_again(source, segment, self.settings, task.rows):
            if done == 0:  # rows count from the source's first, or from the segment's
                shift = task.first_row if batch.first_row == 0 else 0
            self._batch(source, batch._replace(rows=batch.rows + shift), shift, choice)
            done += batch.row_count
            with self._lock:
                seen = self.rows_seen.get((task.source, task.segment), 0)
                self.rows_seen[task.source, task.segment] = max(seen, done)
            enough = isinstance(choice, Rows) and task.first_row + done > choice.wanted[-1]
            if enough or self._over():
                return
        refuse_changed(source)
        if done != task.rows:
            self._report(
                Problem(
                    kind="row",
                    source=source.name,
                    message=f"{source.name}: rows {task.first_row} to "
                    f"{task.first_row + done - 1} were read, index/units says {task.rows} rows",
                )
            )

    def _segments(self, source: Source) -> dict[int, Any]:
        """How a source is cut, kept for some sources: their segments come in any order."""
        found = self.segments_of.get(source.number)
        if found is None:
            found = {s.number: s for s in segments_of(source, self.settings.reading)}
            with self._lock:
                if len(self.segments_of) >= 64:
                    self.segments_of.pop(next(iter(self.segments_of)), None)
                self.segments_of[source.number] = found
        return found

    def _batch(self, source: Source, batch: Batch, shift: int, choice: Choice) -> None:
        """Each row of a batch must be where it belongs, each chosen document what it should be."""
        first = batch.first_row + shift
        stop = first + batch.row_count
        aside = [bad.row + shift for bad in batch.bad]
        fatal = np.isin(batch.rows, self.fatal[source.number])
        if fatal.any():  # text, but it killed or hung a worker: the manifest names such rows
            aside += batch.rows[fatal].tolist()
            batch = _without(batch, fatal)
        counts = Counts(rows=batch.row_count, text_bytes=batch.texts.size)
        counts.quarantined = len(aside)
        self._check_aside(source, first, stop, aside)
        chosen = choice(batch.rows)
        for number, stream in enumerate(self.streams):
            low = stream.from_row(source.number, first)
            stored = stream.rows_of(low, stream.from_row(source.number, stop))
            expected = self._expected(source, batch, number, stored, counts)
            self._compare_rows(source, stream, low, stored, expected.rows)
            places = np.searchsorted(stored, expected.rows)
            keep = chosen[expected.indexes] & np.isin(expected.rows, stored)
            self._compare_documents(
                source, batch, stream, expected.indexes[keep], low + places[keep], counts
            )
            if self._over():
                return
        with self._lock:
            self.counts[source.number].add(counts)

    def _check_aside(self, source: Source, first: int, stop: int, bad: list[int]) -> None:
        """The rows that are no text must be those that quarantine.jsonl names."""
        listed = self.quarantined[source.number]
        low, high = np.searchsorted(listed, [first, stop])
        for row in sorted(set(listed[low:high].tolist()) ^ set(bad))[:1]:
            what = (
                "is no text, but quarantine.jsonl does not name it"
                if row in bad
                else "is named by quarantine.jsonl, but can be read"
            )
            self._report(
                Problem(
                    kind="quarantine",
                    source=source.name,
                    row=row,
                    message=f"{source.name}: row {row} {what}",
                )
            )

    def _expected(
        self, source: Source, batch: Batch, stream: int, stored: I64, counts: Counts
    ) -> _Expected:
        """The documents of a batch that belong to a stream: by hash, and not dropped."""
        mask = np.ones(len(batch.rows), bool)
        if len(self.streams) > 1:
            hashes = document_hash(self.settings.seed, source.number, batch.positions)
            held_out = hashes < np.uint64(self.settings.val.threshold)
            mask = held_out if stream else ~held_out
        if self.settings.drops:
            for index in np.flatnonzero(mask & ~np.isin(batch.rows, stored)):
                # Not stored: right only if its length says so.
                length = len(self._ids(batch.texts.document(int(index))))
                if self._dropped(length):
                    mask[index] = False
                    counts.dropped += 1
                    counts.empty += length == 0
        indexes = np.flatnonzero(mask)
        return _Expected(indexes, batch.rows[indexes])

    def _dropped(self, length: int) -> bool:
        least, most = self.settings.min_tokens, self.settings.max_tokens or length
        return not max(least, int(self.settings.drop_empty)) <= length <= most

    def _compare_rows(
        self, source: Source, stream: Stream, low: int, stored: I64, expected: I64
    ) -> None:
        if np.array_equal(stored, expected):
            return
        whose = "" if stream.name == "all" else f" of {stream.name}"
        for row in np.setdiff1d(expected, stored)[:1].tolist():
            message = f"{source.name}: row {row} should be a document{whose}, and is not there"
            self._report(Problem(kind="row", source=source.name, row=row, message=message))
        for row in np.setdiff1d(stored, expected)[:1].tolist():
            document = low + int(np.searchsorted(stored, row))
            split, number, _ = stream.number_in_split(document, stream.span(document)[0])
            self._report(
                Problem(
                    kind="row",
                    source=source.name,
                    row=row,
                    split=split,
                    document=number,
                    message=f"{split} document {number}: comes from {source.name}, row {row}, says "
                    f"the index; that row is no document{whose}",
                )
            )

    # --- one document ------------------------------------------------------------------------

    def _compare_documents(
        self,
        source: Source,
        batch: Batch,
        stream: Stream,
        indexes: I64,
        documents: I64,
        counts: Counts,
    ) -> None:
        tally = _Tally()
        whole, begin = None, 0
        if len(documents) and documents[-1] - documents[0] < 4 * len(documents):
            begin = stream.span(int(documents[0]))[0]
            whole = stream.read(begin, stream.span(int(documents[-1]))[1])
        for index, document in zip(indexes.tolist(), documents.tolist(), strict=True):
            start, stop = stream.span(document)
            stored = (
                stream.read(start, stop) if whole is None else whole[start - begin : stop - begin]
            )
            text = batch.texts.document(index)
            ids = self._ids(text)
            expected = with_separator(ids, self.settings)
            if not np.array_equal(stored, expected):
                self._differs(source, int(batch.rows[index]), stream, document, stored, expected)
            counts.documents += 1
            counts.tokens += len(expected)
            counts.empty += len(ids) == 0
            tally.documents += 1
            tally.text_bytes += len(text)
            tally.tokens += len(expected)
            if self._over():
                break
        with self._lock:
            self.tally.add(tally)

    def _ids(self, document: bytes) -> U32:
        """The reference's ids; where it fails, the fast encoder's, as when it was made."""
        try:
            return self.encoder.reference.encode_document(document)
        except ReferenceEncoderError:
            with self._encoder_lock:
                return self.encoder.encode(from_bytes([document]))[0]

    def _differs(
        self,
        source: Source,
        row: int,
        stream: Stream,
        document: int,
        stored: npt.NDArray[Any],
        expected: npt.NDArray[Any],
    ) -> None:
        shorter = min(len(stored), len(expected))
        different = np.flatnonzero(stored[:shorter] != expected[:shorter])
        at = int(different[0]) if len(different) else shorter
        start, stop = stream.span(document)
        token = max(start, min(start + at, stop - 1))
        split, number, position = stream.number_in_split(document, token)
        found = int(stored[at]) if at < len(stored) else -1
        wanted = int(expected[at]) if at < len(expected) else -1
        if found >= 0 and wanted >= 0:
            what = (
                f"token {at} (token {position} of {split}) is {self._shown(found)}, "
                f"the reference says {self._shown(wanted)}"
            )
        else:
            what = f"has {len(stored)} tokens, the reference says {len(expected)}"
        self._report(
            Problem(
                kind="token",
                source=source.name,
                row=row,
                split=split,
                document=number,
                token=at,
                expected=wanted,
                found=found,
                message=f"{split} document {number} ({source.name}, row {row}): {what}",
            )
        )

    def _shown(self, token: int) -> str:
        return f"{token} '{self.decoder.shown(token)}'"

    # --- the end -----------------------------------------------------------------------------

    def report(self, mode: str, files: Report, segments: int, seconds: float) -> DeepReport:
        totals = self.manifest.counts
        complete = self.tally.documents == totals["documents"] and not self._over_early()
        complete = complete and sum(self.rows_seen.values()) == totals["rows"]
        if mode == "all" and not self._over_early():
            self._check_counts()
        stopped = ""
        if len(self.problems) >= MAX_PROBLEMS:
            stopped = f"stopped after {len(self.problems)} problems"
        elif mode == "time" and not complete and not self.problems:
            stopped = "time is over"
        return DeepReport(
            problems=self.problems,
            files=files,
            mode=mode,
            documents=self.tally.documents,
            documents_total=totals["documents"],
            text_bytes=self.tally.text_bytes,
            text_bytes_total=totals["text_bytes"],
            tokens=self.tally.tokens,
            rows=sum(self.rows_seen.values()),
            rows_total=totals["rows"],
            segments=len(self.rows_seen),
            segments_total=segments,
            reference_failures=self.encoder.stats.reference_failures,
            complete=complete and not self.problems,
            stopped=stopped,
            seconds=round(seconds, 3),
        )

    def _over_early(self) -> bool:
        return len(self.problems) >= MAX_PROBLEMS

    def _check_counts(self) -> None:
        """Every row read again: the manifest's counts must come out, source by source."""
        fields = ("rows", "documents", "dropped", "quarantined", "empty", "tokens", "text_bytes")
        for number, entry in enumerate(self.manifest.sources):
            if self.sources[number] is None:
                continue
            for field in fields:
                found = getattr(self.counts[number], field)
                if found != entry[field]:
                    self.problems.append(
                        Problem(
                            kind="count",
                            source=entry["name"],
                            expected=found,
                            found=entry[field],
                            message=f"{entry['name']}: the manifest says {entry[field]} {field}, "
                            f"its rows give {found}",
                        )
                    )


def _fatal_rows(manifest: Manifest) -> list[I64]:
    """For each source the rows that were set aside although they are text."""
    rows: dict[str, list[int]] = {}
    for record in manifest.set_aside:
        rows.setdefault(record["source"], []).append(record["row"])
    return [np.array(rows.get(entry["name"], []), np.int64) for entry in manifest.sources]


def _without(batch: Batch, out: Mask) -> Batch:
    keep = np.flatnonzero(~out)
    return batch._replace(
        texts=from_bytes(batch.texts.document(int(index)) for index in keep),
        rows=batch.rows[keep],
        positions=batch.positions[keep],
    )


def with_separator(ids: U32, settings: PlanSettings) -> npt.NDArray[np.int64]:
    """A document as it should be stored, worked out apart from `pack.py`."""
    text = ids.astype(np.int64)
    separator = np.array([settings.eot_id], np.int64)
    if settings.bos_id >= 0:
        text = np.concatenate((np.array([settings.bos_id], np.int64), text))
    if settings.eot == "prepend":
        return np.concatenate((separator, text))
    return np.concatenate((text, separator)) if settings.eot == "append" else text
