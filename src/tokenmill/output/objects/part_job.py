"""Opening a part of a job on several machines: nothing is locked, nothing is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tokenmill.errors import Interrupted, RefusedError, TokenmillError
from tokenmill.output.objects.opening import refuse_begun_here
from tokenmill.output.objects.parts import PARTS, CutSources, put_note
from tokenmill.output.recovery import (
    BoundPlan,
    JobState,
    binding,
    compare_bound,
    finished_dataset,
    read_plan,
    recover,
    refuse_difference,
    refuse_foreign,
)
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.leases import Lease, Part, segments_in
from tokenmill.planning.plan import Plan
from tokenmill.settings import PlanSettings, RunSettings
from tokenmill.system.interrupts import keeping_work


@contextlib.contextmanager
def noted_part(
    workspace: WorkArea, part: Part, made_with: dict[str, Any], folder: str = PARTS
) -> Iterator[dict[str, Any]]:
    """How a part goes is written down for `status`; what it was made with, for run.json."""

    def put(state: str, **more: Any) -> None:
        if workspace.has(workspace.plan):  # else the job was finished meanwhile
            put_note(workspace, part, state, folder=folder, **more)

    put("at work")
    try:
        yield made_with
    except (TokenmillError, Interrupted) as error:
        put("stopped", message=error.message, hint=error.hint)
        raise
    put("done", made_with=made_with)


def bind_part(plan: Plan, workspace: WorkArea, part: Part) -> BoundPlan:
    """The first part creates plan.json, and the others compare with it."""
    if not workspace.has(workspace.plan):
        put_note(workspace, part, "at work")  # first: it says how this output is opened
        content = binding(plan, workspace, {})  # of a mixture, all is encoded
        with contextlib.suppress(RefusedError):  # another part was quicker
            workspace.store.create(workspace.plan, msgspec.json.encode(content))
    bound = compare_bound(plan, workspace)
    if bound.plan != plan.to_dict():  # amounts of a mixture, which one part cannot change for all
        refuse_difference(bound.plan, plan, workspace, "is bound to another plan")
    return bound


@contextlib.contextmanager
def open_part(
    plan: Plan,
    run: RunSettings,
    workspace: WorkArea,
    part: Part,
    leases: list[Lease],
    check_interrupt: Callable[[], None] = lambda: None,
) -> Iterator[JobState]:
    """Some leases of a job, on one of several machines. Nothing is locked: what is recorded by two
    is the same."""
    refuse_foreign(workspace)
    refuse_begun_here(workspace)
    if workspace.has(workspace.manifest):
        yield JobState(finished_dataset(plan, workspace))
        return
    bound = bind_part(plan, workspace, part)
    cuts = CutSources(workspace)
    mine = {
        (one.source, one.number)
        for lease in leases
        for source in range(lease.first, lease.stop)
        for one in segments_in(lease, cuts.of(source) or [])
    }
    with keeping_work():
        books, durable, aside = recover(plan, run, workspace, bound, check_interrupt, mine)
        with contextlib.closing(books):
            yield JobState(
                books=books,
                durable=durable,
                aside=aside,
                bounds=bound.bounds,
                relative=True,
                leases=tuple(leases),
            )


def bound_to(workspace: WorkArea) -> Plan:
    """The plan that parts of a job on several machines are bound to."""
    bound = read_plan(workspace, workspace.plan, "use --overwrite to start over")
    plan = Plan(
        settings=PlanSettings.from_dict(bound.plan["settings"]),
        sources=bound.all_sources,
        revisions=bound.plan.get("revisions", {}),
    )
    if plan.to_dict() != bound.plan:
        raise RefusedError(
            f"{workspace.where()}: was not begun in parts, or by another version of tokenmill",
            hint="the command that began it completes it",
        )
    return plan
