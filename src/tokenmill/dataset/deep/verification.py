"""Is a dataset what its sources say? Documents are read and encoded again, and compared.

`verify` compares files with the manifest; this compares tokens with the text they were made
from. This module decides which documents are read: some of every segment for a minute, a number
of documents spread evenly, or all. `comparison.py` reads and compares them.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Iterator

import numpy as np

from tokenmill.amounts import parse_count
from tokenmill.dataset.deep.comparison import Comparison, DeepReport, Mask, TaskChoice
from tokenmill.dataset.deep.export_order import export_order_faults
from tokenmill.dataset.deep.origins import Problem, SegmentTask, find_origins, read_tasks
from tokenmill.dataset.loader import Dataset, open_dataset
from tokenmill.dataset.order.one_source import numbers_of
from tokenmill.dataset.streams import Stream, open_streams
from tokenmill.dataset.verification import read_run, verify
from tokenmill.errors import UsageError
from tokenmill.system.store import Place
from tokenmill.texts import I64
from tokenmill.tokenizer.encoders.decoding import encoding_of
from tokenmill.tokens.reframe import BLOCK_TOKENS, ReframedStream
from tokenmill.tokens.shards import origins_in

SAMPLE_SECONDS = 60.0
SAMPLE_STRIDE = 16  # in the first pass over a segment: one document in so many
SEED = 0x746F6B656E


def verify_deep(
    directory: Place,
    *,
    sample: str | int | None = None,
    source_root: str | os.PathLike[str] | None = None,
    tokenizer: str | None = None,
    seconds: float = SAMPLE_SECONDS,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> DeepReport:
    """Compare a dataset with its sources: for `seconds`, `sample` documents, or "all".

    Problems are returned, not raised; sources that cannot be found are an error.
    """
    began = time.monotonic()
    mode, wanted = _parse_sample(sample)
    files = verify(directory, threads=threads)
    if not files.ok:  # nothing can be looked up in a damaged index
        problems = [Problem(message, "file") for message in files.problems]
        return DeepReport(problems=problems, files=files, mode=mode, stopped="files are damaged")
    dataset = open_dataset(directory)
    manifest, settings = dataset.manifest, dataset.settings
    if not settings.text_column:
        raise UsageError(
            f"{dataset.store.where()}: was imported from token files, so its text is not known",
            hint="`tokenmill verify` without --deep compares its bytes",
        )
    encoding = encoding_of(settings, read_run(dataset.store), tokenizer)
    sources, problems = find_origins(dataset, source_root)
    if settings.only:  # the rows of other sources are not here, and none of them is looked for
        mine = numbers_of(manifest, settings.only)
        sources = {number: source for number, source in sources.items() if number in mine}
    streams = open_streams(dataset)
    tasks, found = read_tasks(dataset.store, manifest)
    copies = manifest.counts.get("copies", 0)
    found += _index_problems(streams, manifest.counts["documents"] + copies)
    if wanted >= manifest.counts["documents"]:
        mode = "all"
    comparison = Comparison(dataset, encoding, sources, streams, problems + found, mode)
    if not any(problem.kind == "index" for problem in found):  # which lookups trust
        comparison.problems += _other_formats(dataset, streams)
        readable = [task for task in tasks if task.source in sources]
        work: Iterator[TaskChoice] = (TaskChoice(task, _everything) for task in readable)
        if mode == "sample":
            work = spread_evenly(readable, streams, wanted)
        elif mode == "time":
            comparison.deadline = time.monotonic() + seconds
            work = in_passes(readable)
        comparison.run(work, threads, on_progress)
    return comparison.report(mode, files, len(tasks), time.monotonic() - began)


def _parse_sample(sample: str | int | None) -> tuple[str, int]:
    """The mode, and how many documents are asked for."""
    if sample is None or sample == "all":
        return sample or "time", 0
    number = parse_count(sample, what="--sample")
    if number < 1:
        raise UsageError("--sample must be at least 1", hint="or use --sample all")
    return "sample", number


def _index_problems(streams: list[Stream], documents: int) -> Iterator[Problem]:
    if (there := sum(stream.documents for stream in streams)) != documents:
        message = f"index: has {there} documents, the manifest says {documents}"
        yield Problem(message, "index")
    for number, stream in enumerate(streams):
        contradictions = [*stream.faults(), *export_order_faults(number, stream)]
        yield from (Problem(message, "index") for message in contradictions)
        if not contradictions:
            yield from (Problem(message, "border") for message in stream.border_faults())


def _other_formats(dataset: Dataset, streams: list[Stream]) -> Iterator[Problem]:
    """The second and further formats: every token must be that of the first format."""
    settings = dataset.settings
    for layout in settings.layouts[1:]:
        others = open_streams(Dataset(dataset.store, dataset.manifest, layout.format))
        for first, other in zip(streams, others, strict=True):
            yield from (Problem(message, "border") for message in other.border_faults())
            expected = ReframedStream(first, settings, layout)
            for start in range(0, expected.tokens, BLOCK_TOKENS):
                stop = min(start + BLOCK_TOKENS, expected.tokens)
                if not np.array_equal(other.read(start, stop), expected.read(start, stop)):
                    message = (
                        f"{layout.format}: tokens {start} to {stop - 1} of {other.name} are not "
                        f"those of {settings.first.format}"
                    )
                    yield Problem(message, "token")
                    break


def _everything(rows: I64) -> Mask:
    return np.ones(len(rows), bool)


def _one_of_many(rows: I64, salt: int) -> Mask:
    return np.equal((rows + salt) % SAMPLE_STRIDE, 0)


def in_passes(tasks: list[SegmentTask]) -> Iterator[TaskChoice]:
    """Segments in a seeded order: some documents of each, then, if time is left, the others."""
    rng = random.Random(SEED)
    order = list(tasks)
    rng.shuffle(order)
    chosen = [functools.partial(_one_of_many, salt=rng.randrange(SAMPLE_STRIDE)) for _ in order]
    yield from map(TaskChoice, order, chosen)
    for task, choice in zip(order, chosen, strict=True):
        yield TaskChoice(task, lambda rows, choice=choice: ~choice(rows))  # type: ignore[misc]


def spread_evenly(
    tasks: list[SegmentTask], streams: list[Stream], count: int
) -> Iterator[TaskChoice]:
    """So many documents, grouped by the segments that hold them."""
    total = sum(stream.documents for stream in streams)
    rows_of: dict[int, list[int]] = {}
    for i in range(count):
        document = (2 * i + 1) * total // (2 * count)
        for stream in streams:
            if document < stream.documents:
                (source,), (row,) = origins_in(stream.runs, document, document + 1)
                rows_of.setdefault(int(source), []).append(int(row))
                break
            document -= stream.documents
    wanted = {source: np.unique(rows) for source, rows in rows_of.items()}
    for task in tasks:
        rows = wanted.get(task.source, np.zeros(0, np.int64))
        low, high = np.searchsorted(rows, [task.first_row, task.first_row + task.rows])
        if low < high:
            choice = functools.partial(np.isin, test_elements=rows[low:high])
            yield TaskChoice(task, choice, stop_row=int(rows[high - 1]) + 1)
