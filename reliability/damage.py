"""A work folder that was damaged while nobody worked on it, and writes that come out short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from reliability.corpus import durable_records
from reliability.faults import fault_case
from reliability.power import record
from reliability.small_job import Job, died, in_child, using
from tokenmill.engines.order import further
from tokenmill.engines.order.choosing import choose_documents
from tokenmill.errors import StorageError
from tokenmill.output.journal import JOURNAL_MAGIC, framed_records
from tokenmill.system.failpoints import FaultyDisk

JOURNAL_FLIPS = 24


def cases(job: Job, folder: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    root = folder / f"damage-{job.name}"
    trace = record(lambda: job.run_first(root), folder / "trace")
    journal = [n for n, (_, made) in enumerate(trace) if made.path.endswith("/journal")]
    middle = journal[len(journal) * 2 // 3] + 1  # several units are durable by then
    for harm in (flip_a_durable_byte, cut_a_durable_piece, add_a_tail):
        yield harm.__name__, partial(_harmed, job, middle, harm)
    for part in range(JOURNAL_FLIPS):
        harm = partial(flip_in_the_journal, part=part)
        yield f"journal flip {part}", partial(_harmed, job, middle, harm)
    for number in range(1, 12, 2):
        yield f"short@{number}", partial(fault_case, job, f"short@{number}")


def _harmed(job: Job, moment: int, harm: Callable[[Path], None], folder: Path) -> None:
    """Killed, harmed, resumed: identical, or an error; never other tokens."""
    output = folder / "o"
    with using(FaultyDisk(f"kill@{moment}")):
        code, said = in_child(lambda: job.run_first(output))
    assert died(code), said
    harm(output)
    try:
        job.run(output, workers=0)
    except StorageError:
        job.run(output, workers=0, overwrite=True)  # as its hint says
    job.check_done(output)


def sorted_cases(job: Job, folder: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Of a shuffled job: harm to what its first half wrote, before and while it is read."""
    root = folder / f"sorted-{job.name}"
    trace = record(lambda: job.run_first(root), folder / "trace")
    journal = [n for n, (_, made) in enumerate(trace) if made.path.endswith("/journal")]
    for moment in (journal[len(journal) // 3] + 1, journal[-1] + 1):  # some is durable; all is
        yield f"sorted flip at {moment}", partial(_sorted_harmed, job, moment)
    yield "sorted flip between the halves", partial(_flipped_between, job)


def _flip_sorted(output: Path) -> None:
    path = max((output / ".tokenmill/files").glob("sorted-*"), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def _sorted_harmed(job: Job, moment: int, folder: Path) -> None:
    """Noticed when the job is resumed, and made again."""
    output = folder / "o"
    with using(FaultyDisk(f"kill@{moment}")):
        code, said = in_child(lambda: job.run_first(output))
    assert died(code), said
    _flip_sorted(output)
    job.run(output, workers=0)
    job.check_done(output)


def _flipped_between(job: Job, folder: Path) -> None:
    """Within one run: an error that names the file, and the same command mends it."""
    output = folder / "o"

    def flip_first(run: Any, passes: Any) -> Any:
        _flip_sorted(output)
        return choose_documents(run, passes)

    with mock.patch.object(further, "choose_documents", flip_first):
        try:
            job.run_first(output)
        except StorageError as error:
            assert "changed since it was written" in error.message, error.message
        else:
            raise AssertionError("a changed bit went into the dataset")
    job.run(output, workers=0)
    job.check_done(output)


def _durable_piece(output: Path) -> tuple[Path, int, int]:
    records = durable_records(output)
    assert records, "nothing is durable yet"
    piece = max((p for record in records for p in record.pieces), key=lambda p: p.length)
    return output / ".tokenmill/files" / piece.file, piece.offset, piece.length


def flip_a_durable_byte(output: Path) -> None:
    path, offset, length = _durable_piece(output)
    content = bytearray(path.read_bytes())
    content[offset + length // 2] ^= 1
    path.write_bytes(content)


def flip_in_the_journal(output: Path, part: int) -> None:
    """The lowest bit of a byte of the last record but one: a count, an offset, a digest."""
    path = output / ".tokenmill/journal"
    content = bytearray(path.read_bytes())
    header = content.index(b"\n", len(JOURNAL_MAGIC)) + 1
    ends = [end for _, end in framed_records(bytes(content), header)]
    assert len(ends) >= 3, "too little is durable yet"
    first, last = ends[-3], ends[-2]
    content[first + (last - first) * (2 * part + 1) // (2 * JOURNAL_FLIPS)] ^= 1
    path.write_bytes(content)


def cut_a_durable_piece(output: Path) -> None:
    path, offset, length = _durable_piece(output)
    path.write_bytes(path.read_bytes()[: offset + length // 2])


def add_a_tail(output: Path) -> None:
    path, _, _ = _durable_piece(output)
    path.write_bytes(path.read_bytes() + bytes(1 << 20))
