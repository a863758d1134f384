"""The files that are to be made of units in their places: written down for parts of `finish`.

The first part that runs gives all units their places, as a coordinator with a lease. It announces
the names of all files, and writes down the tasks that make them. Then every part makes its share,
on any machine and without a lease: a file that two parts make has the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import metadata

import msgspec

from tokenmill.errors import RefusedError
from tokenmill.output.file_maker import LOG, FileTask, noted_file
from tokenmill.output.file_tasks import FileJob, effort_of
from tokenmill.output.journal import framed, journal_header
from tokenmill.output.objects.log import valid_records
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.workspace import FILES, MADE_BY_PARTS
from tokenmill.planning.leases import Part
from tokenmill.planning.plan import Plan
from tokenmill.system.store import read_small

TASKS = f"{FILES}/tasks"
PACKAGES = ("tokenmill", "pyarrow")  # they decide which bytes a file of tokens becomes


def package_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


class FileList(msgspec.Struct, frozen=True):
    """All token files of a job, as tasks."""

    evidence: str  # of the units that files are made of
    job: FileJob
    tasks: list[FileTask]
    versions: dict[str, str]

    def share_of(self, part: Part) -> list[FileTask]:
        """The tasks of one part. The shares of all parts are about the same work."""
        order = sorted(self.tasks, key=lambda task: -effort_of(self.job.settings, task))
        return order[part.number :: part.of]


_decode = msgspec.msgpack.Decoder(FileList).decode


def put_file_list(
    plan: Plan, workspace: ObjectWorkspace, evidence: str, job: FileJob, tasks: Sequence[FileTask]
) -> None:
    """Call only while holding the lease, when all units have their places."""
    found = FileList(evidence, job, list(tasks), package_versions())
    workspace.announce([task.working for task in tasks])  # before the first byte of each
    content = journal_header(plan.fingerprint) + framed(msgspec.msgpack.encode(found))
    workspace.store.write_whole(TASKS, content)


def read_file_list(plan: Plan, workspace: ObjectWorkspace) -> FileList | None:
    """None: no part of `finish` has written it down yet, or it is damaged."""
    with contextlib.suppress(FileNotFoundError):
        content = read_small(workspace.store, TASKS)
        for found in valid_records(content, journal_header(plan.fingerprint), _decode):
            # The folder may have another path on this machine.
            job = msgspec.structs.replace(
                found.job, source=workspace.where(FILES), output=workspace.address
            )
            return msgspec.structs.replace(found, job=job)
    return None


def made_files(workspace: ObjectWorkspace, evidence: str) -> set[str]:
    """The files that any machine has recorded as made. They are not compared."""
    found: set[str] = set()
    for log in (MADE_BY_PARTS, LOG):
        records, _ = workspace.read_log(log, evidence, noted_file)
        found |= {made.working for made in records}
    return found


def refuse_other_versions(found: FileList) -> None:
    """Files of one dataset are made by the same versions, whichever machine makes them."""
    here = package_versions()
    other = [
        f"{name} {here[name]} instead of {version}"
        for name, version in found.versions.items()
        if here.get(name) != version
    ]
    if other:
        raise RefusedError(
            f"this machine has other versions than the first part of `finish`: {', '.join(other)}",
            hint="install the same versions on all machines: they decide which bytes a file has",
        )
