"""The segments of a plan in document order, with what an earlier run has done of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tokenmill.engines.frontier import SegmentJob
from tokenmill.manifest import UnitRecord
from tokenmill.plan import Plan, segments_of


def segment_jobs(
    plan: Plan,
    durable: Iterable[UnitRecord],
    aside: Mapping[tuple[int, int], dict[int, str]],
) -> Iterator[SegmentJob]:
    """One job per segment; sources are cut when their turn comes, not before."""
    done: dict[tuple[int, int], list[UnitRecord]] = {}
    for record in durable:
        done.setdefault((record.unit.source, record.unit.segment), []).append(record)
    for source in plan.sources:
        for segment in segments_of(source, plan.settings.text_column):
            job = SegmentJob(segment)
            job.aside.update(aside.get(job.key, {}))
            for record in done.pop(job.key, ()):
                job.note_written(record.unit, record.last)
            yield job
