"""From options and inputs to a proposal: the plan, how it would be run, and what it needs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tokenmill.engines.supply import Downloads
from tokenmill.errors import TokenmillError
from tokenmill.inputs.find import SourceListing
from tokenmill.inputs.opening.access import LOCAL, InputAccess
from tokenmill.inputs.remote.hub import ListCache
from tokenmill.output.journal import UnitRecord
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.recovery import bound_revisions
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.make import Proposal, make_plan
from tokenmill.planning.mixture.inputs import FindDataset
from tokenmill.planning.needs import disk_warning, refuse_if_offline
from tokenmill.planning.options import Options
from tokenmill.settings import PlanSettings
from tokenmill.system.cache import keep_in_cache, read_from_cache
from tokenmill.system.store import Place, place_name


def propose(
    inputs: Any,
    output: Place,
    options: Options,
    access: InputAccess = LOCAL,
    *,
    keep_listings: bool = True,
) -> Proposal:
    """The plan of a job, bound to the same commits of the Hub if the job is unfinished.

    `access`: opens the inputs. `keep_listings`: in the cache, so that the inputs are found again
    without a request.
    """
    shelf = ListCache(read_from_cache)
    revisions = functools.partial(bound_revisions, open_workspace(output))
    finder = _dataset_finder(output)
    prepared = make_plan(inputs, place_name(output), options, shelf, revisions, finder, access)
    for name, content in shelf.new.items() if keep_listings else ():
        with contextlib.suppress(TokenmillError):  # then the Hub is asked again
            keep_in_cache(name, content)
    return prepared


def _dataset_finder(output: Place) -> FindDataset:
    """Opens prepared datasets that a mixture names; none of them may be the output."""

    def find(path: str, settings: PlanSettings) -> SourceListing:
        from tokenmill.dataset.reuse import find_prepared

        return find_prepared(path, settings, place_name(output))

    return find


def make_supply(
    prepared: Proposal,
    workspace: WorkArea,
    only: set[int] | None = None,
    access: InputAccess = LOCAL,
) -> Downloads:
    """`only`: numbers of the sources that are read; None: all."""
    run = prepared.run
    return Downloads(
        prepared.plan,
        workspace,
        keep=run.keep_downloads,
        downloads=run.downloads,
        only=only,
        access=access,
    )


def with_needs(prepared: Proposal) -> Proposal:
    """For `plan`: what would be downloaded; only `prepare` refuses."""
    supply = make_supply(prepared, open_workspace(prepared.output))
    supply.survey()
    return msgspec.structs.replace(prepared, needs=supply.needs())


def with_reuse(prepared: Proposal) -> Proposal:
    """What `--reuse` spares; refused where it spares nothing."""
    if not prepared.run.reuse:
        return prepared
    from tokenmill.dataset.reuse import find_reuse

    reuse = find_reuse(prepared.run.reuse, prepared.plan, prepared.output)
    return msgspec.structs.replace(prepared, reuse=reuse)


def survey(
    prepared: Proposal,
    supply: Downloads,
    durable: Sequence[UnitRecord] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Proposal:
    """What is to be downloaded; raises if it does not fit on the disk, or if we are offline."""
    supply.survey(durable)
    written = sum(piece.length for record in durable for piece in record.pieces)
    needs = supply.needs(written)
    if needs is None:
        if short := disk_warning(prepared.plan, prepared.output, written):
            note(short)
    else:
        refuse_if_offline(supply.missing)
        needs.refuse_if_short()
    return msgspec.structs.replace(prepared, needs=needs)
