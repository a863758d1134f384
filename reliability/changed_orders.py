"""The part of R14 about shuffled jobs and mixtures: stopped in either half, then changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tokenmill
from reliability.corpus import dataset_bytes
from reliability.r14_changed_job import Job, byte_changed, ends_as, finished, refused, stopped
from tokenmill.engines.order import further
from tokenmill.output.durability import UnitLog

JOBS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "val": "0.2"},
    "mixed": {"shuffle": True, "val": "0.2", "mix": "mix.toml"},
}
SMALL_RANGES = {"TOKENMILL_RANGE_BYTES": "1500", "TOKENMILL_MAX_RUNS": "2"}
SOURCES = 3


class OrderedJob(Job):
    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.kind = kind

    def options(self, **changes: Any) -> dict[str, Any]:
        return super().options(**{**JOBS[self.kind], **changes})

    def command(self, *, inputs: list[Path] | None = None, **changes: Any) -> tuple[int, str]:
        return super().command(inputs=[] if self.kind == "mixed" else inputs, **changes)

    def stop_at(self, owner: Any, name: str, when: Callable[..., bool]) -> None:
        with stopped(owner, name, when):
            inputs = [] if self.kind == "mixed" else self.paths
            tokenmill.prepare(inputs, self.output, quiet=True, **self.options())


# --- what a crash leaves behind --------------------------------------------------------------


def encoded(job: OrderedJob) -> None:
    """All units are durable, and no document is chosen or in its place."""
    job.stop_at(further, "choose_documents", lambda *_: True)


def ordered_in_part(job: OrderedJob) -> None:
    """A range is durable, too."""
    job.stop_at(
        UnitLog, "written", lambda _, one: one.unit.source == SOURCES and one.unit.segment == 1
    )


STATES = {"encoded": encoded, "ordered in part": ordered_in_part, "finished": finished}


# --- changes ---------------------------------------------------------------------------------

CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 1}, "seed: "),
    "validation": ({"val": "0.3"}, "val: "),
    "order of the inputs": ({"shuffle": None}, "shuffle: True -> not set"),
    "shards": ({"shard_tokens": 2001}, "shard_tokens: 2000 -> 2001"),
}
FREE: dict[str, dict[str, Any]] = {
    "workers": {"workers": 2},
    "memory": {"memory": "777MB"},
    "spawn": {"workers": 1, "start_method": "spawn"},
}
OTHERS = ("bytes", "ranges", "amounts", "inputs backwards")


def names(fast: bool, seed: int) -> list[str]:
    found = [
        f"{state} | {kind} | {change}"
        for kind in JOBS
        for state in STATES
        for change in (*CHANGES, *FREE, *OTHERS)
        if _possible(kind, state, change)
    ]
    return found[seed % 7 :: 7] if fast else found


def _possible(kind: str, state: str, change: str) -> bool:
    if change == "amounts":  # free until documents are chosen
        return kind == "mixed" and state != "encoded"
    return kind == "shuffled" or change != "inputs backwards"


def case(name: str, folder: Path, expected: dict[str, dict[str, bytes]]) -> None:
    state, kind, change = name.split(" | ")
    job = OrderedJob(folder, kind)
    STATES[state](job)
    if change in CHANGES:
        options, wanted = CHANGES[change]
        refused(job, [wanted], **options)
    elif change == "bytes":
        refused(job, [byte_changed(job)])
        code, printed = job.command(overwrite=True)
        assert code == 0, printed
        return
    elif change == "ranges":
        with mock.patch.dict(os.environ, TOKENMILL_RANGE_BYTES="1600"):
            refused(job, [])
    elif change == "amounts":
        mix = job.folder / "mix.toml"
        before = mix.read_text()
        mix.write_text("tokens = 900\n" + before)
        refused(job, ["mixture, total: 0 -> 900"])
        mix.write_text(before)
    elif change == "inputs backwards":
        job.paths.reverse()
    ends_as(job, expected[kind], **FREE.get(change, {}))


def undisturbed(folder: Path) -> dict[str, dict[str, bytes]]:
    os.environ.update(SMALL_RANGES)
    found: dict[str, dict[str, bytes]] = {}
    for kind in JOBS:
        (folder / kind).mkdir()
        job = OrderedJob(folder / kind, kind)
        finished(job)
        found[kind] = dataset_bytes(job.output)
    return found
