"""Leases: the shares of a job that cross machines. A function of the sources' sizes alone.

A lease is a run of small sources, or a byte fraction of a large one, worth about 1 GB of input. It
is known before any file is opened. A segment belongs to the fraction in which it begins; the worker
that opens the file finds the segments. A compressed file is one segment, so it is one lease. A
remote file is never in two leases, because each would download it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tokenmill.errors import UsageError
from tokenmill.inputs.remote.address import is_url
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source

LEASE_BYTES = 1 << 30  # about ten seconds of work
INDEX_NAMES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")  # Slurm, Kubernetes


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Sources [first, stop); or, of one source, fraction `part` of `of` equal ones."""

    number: int
    first: int
    stop: int
    part: int = 0
    of: int = 1


def lease_bytes() -> int:
    """Tests make leases small."""
    value = os.environ.get("TOKENMILL_LEASE_BYTES", "")
    return int(value) if value.isdigit() and int(value) else LEASE_BYTES


def leases_of(sources: Sequence[Source]) -> Iterator[Lease]:
    """All leases of a plan, in document order. Every source is in one lease, or is all fractions
    of leases of its own."""
    target = lease_bytes()
    number = first = total = 0
    for index, source in enumerate(sources):
        if source.size >= 2 * target and not source.compression and not is_url(source.name):
            if first < index:
                yield Lease(number, first, index)
                number += 1
            count = source.size // target
            for part in range(count):
                yield Lease(number, index, index + 1, part, count)
                number += 1
            first, total = index + 1, 0
            continue
        total += source.size
        if total >= target:
            yield Lease(number, first, index + 1)
            number += 1
            first, total = index + 1, 0
    if first < len(sources):
        yield Lease(number, first, len(sources))


def segments_in(lease: Lease, segments: Sequence[Segment]) -> list[Segment]:
    """The segments of one source that belong to a lease: those that begin in its fraction."""
    if lease.of == 1:
        return list(segments)
    total = sum(one.size for one in segments)
    found, before = [], 0
    for one in segments:
        # Exact in whole numbers, so every machine gives the same answer.
        place = before * lease.of // total if total else 0
        if min(place, lease.of - 1) == lease.part:
            found.append(one)
        before += one.size
    return found


class Part(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One of `of` shares of a job: the leases whose number leaves the remainder `number`."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """'3/16', or 'auto/16' under Slurm or Kubernetes."""
        number, slash, of = text.partition("/")
        if number == "auto":
            names = [name for name in INDEX_NAMES if os.environ.get(name)]
            if not names:
                raise UsageError(
                    f"--part {text}: neither {INDEX_NAMES[0]} nor {INDEX_NAMES[1]} is set",
                    hint="start it as an array job, or say the number: --part 0/16",
                )
            number = os.environ[names[0]]
        if not (slash and number.isdecimal() and of.isdecimal() and int(of)):
            raise UsageError(
                f"--part {text}: must be I/N, with I from 0 to N - 1", hint="such as --part 0/16"
            )
        if int(number) >= int(of):
            raise UsageError(
                f"--part {text}: {number} is not below {of}",
                hint="parts are numbered from 0: with Slurm, --array=0-"
                f"{int(of) - 1}; with Kubernetes, completions: {of}",
            )
        return cls(int(number), int(of))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, lease: Lease) -> bool:
        return lease.number % self.of == self.number

    def of_leases(self, leases: Iterable[Lease]) -> list[Lease]:
        return [lease for lease in leases if self.has(lease)]
