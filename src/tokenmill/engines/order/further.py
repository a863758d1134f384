"""A further pass over the inputs of a mixture: more of some sources is encoded than in the first.

Units of the pass have numbers of sources behind the plan's (`tokens/order.py`). They hold the
documents whose choice keys are between the bound of the pass before and that of this one.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from tokenmill.engines import events
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress, by_segment
from tokenmill.engines.order.choosing import (
    ChosenDocuments,
    MissingDocuments,
    choose_documents,
)
from tokenmill.engines.order.order_run import OrderRun
from tokenmill.engines.order.skipping import Skipping
from tokenmill.engines.run import EncodingRun
from tokenmill.engines.supply import Downloads
from tokenmill.engines.unit import UnitWorker
from tokenmill.inputs.kinds import segments_of
from tokenmill.inputs.source import Source
from tokenmill.output.journal import UnitRecord
from tokenmill.output.recovery import JobState, QuarantinedRows, note_pass
from tokenmill.planning.plan import Plan
from tokenmill.tokens.epochs import EVERYTHING
from tokenmill.tokens.order import pass_source


class FurtherRun(OrderRun):
    """Reads the files of some sources again."""

    def __init__(
        self,
        encoding: EncodingRun,
        passes: list[dict[str, int]],
        opened: JobState,
        quarantine_bytes: int,
        supply: Downloads,
    ) -> None:
        """`passes`: bounds of all passes up to this one."""
        plan, number = encoding.plan, len(passes) - 1
        reached = {name: bound for one in passes[:-1] for name, bound in one.items()}
        bounds = tuple(
            (reached.get(source.mix, EVERYTHING), passes[-1].get(source.mix, 0))
            for source in plan.sources
        )
        self.encoding, self.supply = encoding, supply
        self.more = [source for source in plan.sources if source.mix in passes[-1]]
        self.worker_job = msgspec.structs.replace(encoding.job, skipping=Skipping(bounds, True))
        self.job = self.worker_job  # type: ignore[assignment]
        self.settings, self.log = encoding.settings, encoding.log
        self.books, self.check_interrupt = encoding.books, encoding.check_interrupt
        self._done_bytes = 0
        count = len(plan.sources)
        mine = {pass_source(number, one.number, count): one for one in self.more}
        durable = [one for one in opened.ordered if one.unit.source in mine]
        self.log.add(events.FilesBegun(len(self.more), sum(one.size for one in self.more)))
        self.dispatch = Dispatch(
            encoding.job.settings,
            self.settings,
            _segments(plan, number, self.more, durable, opened.aside, supply),
            durable,
            self.books,
            rules=[],
            on_event=self._on_event,
        )
        state = self.dispatch.frontier.state
        self.dispatch.frontier.state = msgspec.structs.replace(
            state, quarantine_bytes=quarantine_bytes
        )

    def open_worker(self) -> UnitWorker:  # type: ignore[override]
        return UnitWorker(self.worker_job, files=self.books.workspace.open_files())

    def report(self) -> None:
        self.supply.report(self.log)
        super().report()


def _segments(
    plan: Plan,
    number: int,
    sources: list[Source],
    durable: list[UnitRecord],
    aside: QuarantinedRows,
    supply: Downloads,
) -> Iterator[SegmentProgress | None]:
    """All segments of some files, numbered for this pass. None: a file is being downloaded."""
    done = by_segment(durable)
    for planned in sources:
        while (source := supply.here(planned)) is None:
            yield None
        mine = pass_source(number, planned.number, len(plan.sources))
        for segment in segments_of(source, plan.settings.reading):
            numbered = msgspec.structs.replace(segment, source=mine)
            progress = SegmentProgress(numbered, source)
            progress.aside.update(aside.get(progress.key, {}))
            for record in done.pop(progress.key, ()):
                progress.note_written(record)
            yield progress


def encode_and_choose(
    encoding: EncodingRun,
    opened: JobState,
    work: Callable[[OrderRun], None],
) -> tuple[ChosenDocuments | None, Counter[str]]:
    """What a mixture takes, after as many further passes as it needs (None: it is no mixture);
    and what the encoders of these passes did."""
    passes = list(opened.bounds) or [{}]
    quarantined = encoding.dispatch.frontier.state.quarantine_bytes
    stats = Counter[str]()
    done = 1
    while True:
        while done < len(passes):  # also those that an earlier run has begun
            done += 1
            mine = {one.number for one in encoding.plan.sources if one.mix in passes[done - 1]}
            run_settings = encoding.settings
            supply = Downloads(
                encoding.plan,
                encoding.books.workspace,
                keep=run_settings.keep_downloads,
                downloads=run_settings.downloads,
                only=mine,
            )
            supply.survey()
            with contextlib.closing(supply):
                run = FurtherRun(encoding, passes[:done], opened, quarantined, supply)
                supply.start()
                work(run)
            quarantined = run.dispatch.frontier.state.quarantine_bytes
            stats += run.dispatch.stats
        found = choose_documents(encoding, passes)
        if not isinstance(found, MissingDocuments):
            return found, stats
        encoding.log.observer.note(
            f"more of {', '.join(found.bounds)} is needed than was estimated: the inputs are read "
            "again, and what is missing is encoded"
        )
        note_pass(encoding.books.workspace, found.bounds)
        passes.append(found.bounds)
