"""Is a dataset what its sources say? Documents are read and encoded again, and compared.

`verify` compares files with the manifest; this compares tokens with the text they were made
from. Here is decided what is read: some documents of every segment for a minute, a number of
documents spread evenly, or all. `comparison.py` does the reading and comparing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from tokenmill.comparison import Comparison, DeepReport, Mask, Rows, Work
from tokenmill.config import PlanSettings, parse_count
from tokenmill.encoders import ExactEncoder
from tokenmill.encoders.decoding import encoding_of, open_decoder
from tokenmill.errors import UsageError
from tokenmill.inspection import read_run
from tokenmill.loader import open_dataset
from tokenmill.manifest import Manifest
from tokenmill.origins import Problem, Task, find_origins, quarantined_rows, read_tasks
from tokenmill.shards import BLOCK_TOKENS, Reframed
from tokenmill.texts import I64
from tokenmill.token_streams import Stream, open_streams
from tokenmill.verification import verify

SAMPLE_SECONDS = 60.0
SAMPLE_STRIDE = 16  # in the first pass over a segment: one document in so many
SEED = 0x746F6B656E


def verify_deep(
    directory: str | os.PathLike[str],
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
    wanted = _parse_sample(sample)
    mode = "time" if wanted is None else "all" if wanted < 0 else "sample"
    files = verify(directory, threads=threads)
    if not files.ok:  # nothing can be looked up in a damaged index
        problems = [Problem(kind="file", message=message) for message in files.problems]
        return DeepReport(problems=problems, files=files, mode=mode, stopped="files are damaged")
    dataset = open_dataset(directory)
    manifest, settings = dataset.manifest, dataset.settings
    if not settings.text_column:
        raise UsageError(
            f"{directory}: was made of token files that were imported: its text is not known",
            hint="`tokenmill verify` without --deep compares its bytes",
        )
    run = read_run(dataset.directory)
    encoding = encoding_of(settings, run, tokenizer)
    sources, problems = find_origins(manifest, run, source_root, settings.text_column)
    streams = open_streams(dataset.directory, manifest)
    tasks, found = read_tasks(dataset.directory, manifest)
    for stream in streams:
        contradictions = list(stream.faults())
        found += [Problem(kind="index", message=message) for message in contradictions]
        if not contradictions:
            found += [Problem(kind="border", message=m) for m in stream.border_faults()]
    if not any(problem.kind == "index" for problem in found):
        found += _other_formats(dataset.directory, manifest, streams)
    check = Comparison(
        settings=settings,
        manifest=manifest,
        sources=sources,
        streams=streams,
        quarantined=quarantined_rows(dataset.directory, manifest),
        encoder=ExactEncoder(encoding, "reference", ()),
        decoder=open_decoder(encoding, settings),
        problems=problems + found,
    )
    work = [task for task in tasks if sources[task.source] is not None]
    if wanted is not None and wanted >= manifest.counts["documents"]:
        mode = "all"
    if not any(problem.kind == "index" for problem in found):  # else nothing can be looked up
        if mode == "sample":
            check.run(_picked(work, streams, wanted or 0), threads, on_progress)
        elif mode == "time":
            check.deadline = time.monotonic() + seconds
            check.run(_passes(work), threads, on_progress)
        else:
            check.run(((task, _everything) for task in work), threads, on_progress)
    return check.report(mode, files, len(tasks), time.monotonic() - began)


def _other_formats(directory: Path, manifest: Manifest, streams: list[Stream]) -> Iterator[Problem]:
    """Formats that were written besides: every token must be that of the first one's."""
    whole = msgspec.convert(manifest.plan["settings"], PlanSettings)
    for settings in whole.layouts[1:]:
        others = open_streams(directory, manifest, settings.format)
        for first, other in zip(streams, others, strict=True):
            yield from (Problem(kind="border", message=m) for m in other.border_faults())
            expected = Reframed(first, settings)
            for start in range(0, expected.tokens, BLOCK_TOKENS):
                stop = min(start + BLOCK_TOKENS, expected.tokens)
                found, wanted = other.read(start, stop), expected.read(start, stop)
                if not np.array_equal(found, wanted):
                    message = (
                        f"{settings.format}: tokens {start} to {stop - 1} of {other.name} are not "
                        f"those of {whole.format}"
                    )
                    yield Problem(kind="token", message=message)
                    break


def _parse_sample(sample: str | int | None) -> int | None:
    """None: by time; -1: all; else so many documents."""
    if sample is None or sample == "all":
        return None if sample is None else -1
    number = parse_count(sample, what="--sample")
    if number < 1:
        raise UsageError("--sample must be at least 1", hint="or use --sample all")
    return number


# --- which documents -------------------------------------------------------------------------


def _everything(rows: I64) -> Mask:
    return np.ones(len(rows), bool)


def _passes(tasks: list[Task]) -> Iterator[Work]:
    """Segments in a seeded order: of each some documents, then, if time is left, the others."""
    order = list(tasks)
    rng = random.Random(SEED)
    rng.shuffle(order)
    salts = [rng.randrange(SAMPLE_STRIDE) for _ in order]
    for task, salt in zip(order, salts, strict=True):
        yield task, lambda rows, salt=salt: (rows + salt) % SAMPLE_STRIDE == 0  # type: ignore[misc]
    for task, salt in zip(order, salts, strict=True):
        yield task, lambda rows, salt=salt: (rows + salt) % SAMPLE_STRIDE != 0  # type: ignore[misc]


def _picked(tasks: list[Task], streams: list[Stream], count: int) -> Iterator[Work]:
    """Documents spread evenly, grouped by the segments that hold them."""
    total = sum(stream.documents for stream in streams)
    places: dict[int, list[int]] = {}
    for i in range(count):
        document = (2 * i + 1) * total // (2 * count)
        for stream in streams:
            if document < stream.documents:
                source, row = stream.place_of(document)
                places.setdefault(source, []).append(row)
                break
            document -= stream.documents
    by_source: dict[int, list[Task]] = {}
    for task in tasks:
        by_source.setdefault(task.source, []).append(task)
    for source, rows in places.items():
        wanted = np.unique(np.array(rows, np.int64))
        for task in by_source.get(source, []):
            low, high = np.searchsorted(wanted, [task.first_row, task.first_row + task.rows])
            if low < high:
                yield task, Rows(wanted[low:high])
