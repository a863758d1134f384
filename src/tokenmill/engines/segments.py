"""The segments of a plan in document order, with what an earlier run has done of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tokenmill.engines.frontier import SegmentJob
from tokenmill.manifest import UnitRecord
from tokenmill.plan import Plan, Segment, segments_of
from tokenmill.supply import Supply


def segment_jobs(
    plan: Plan,
    durable: Iterable[UnitRecord],
    aside: Mapping[tuple[int, int], dict[int, str]],
    supply: Supply,
) -> Iterator[SegmentJob | None]:
    """One job per segment; sources are cut when their turn comes, not before. None: the file
    whose turn it is has not come yet, ask again."""
    done: dict[tuple[int, int], list[UnitRecord]] = {}
    for record in durable:
        done.setdefault((record.unit.source, record.unit.segment), []).append(record)
    given: list[SegmentJob] = []
    for planned in plan.sources:
        source = planned
        if plan.settings.limited and planned.remote is not None:
            # A trial may end with what is at hand: another file is fetched only when it has not.
            while not all(job.complete for job in given):
                yield None
        segments: Iterable[Segment] | None = supply.cut_before(planned)
        if segments is None:
            while (here := supply.here(planned)) is None:
                yield None
            source, segments = here, segments_of(here, plan.settings.reading)
            if planned.remote is not None:
                segments = supply.note_cut(planned, list(segments))
        for segment in segments:
            job = SegmentJob(segment, source)
            job.aside.update(aside.get(job.key, {}))
            for record in done.pop(job.key, ()):
                job.note_written(record.unit, record.last)
            if plan.settings.limited:
                given = [one for one in (*given, job) if not one.complete]
            yield job
