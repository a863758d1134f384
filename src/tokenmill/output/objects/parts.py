"""Parts of a job on several machines: what each has to do, and what is recorded of it.

Parts do not know of each other. A part is complete if all units of its leases are recorded. How a
source is cut is written down (`cuts/N`) before its first unit is, so that records alone say what
is missing.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tokenmill.errors import RefusedError, StorageError
from tokenmill.inputs.segments import Segment
from tokenmill.output.objects.record_table import CompleteSegments
from tokenmill.output.workspace import WORK, WorkArea
from tokenmill.planning.leases import Lease, Part, segments_in
from tokenmill.system.store import ObjectStore, read_small

PARTS = f"{WORK}/parts"
FINISH_PARTS = f"{WORK}/finish-parts"  # the same, of `finish --part`
MANY = 20  # numbers in a message


class PartNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a part has last said of itself, for people."""

    part: str
    state: str  # at work, done or stopped
    host: str = ""
    command: str = ""
    message: str = ""
    hint: str = ""
    when: str = ""
    # Of a part that is done, for run.json: inputs, tokenizer, encoder and versions.
    made_with: dict[str, Any] = {}


def put_note(
    workspace: WorkArea, part: Part, state: str, *, folder: str = PARTS, **more: Any
) -> None:
    """A note for people: where it cannot be written, there is none."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    note = PartNote(part=str(part), state=state, host=platform.node(), when=when, **more)
    with contextlib.suppress(OSError, StorageError):
        workspace.store.write_whole(f"{folder}/{part.number}-{part.of}", msgspec.json.encode(note))


def forget_note(workspace: WorkArea, part: Part, folder: str) -> None:
    """The job is finished: nothing of it shall stay, nor folders that are empty."""
    with contextlib.suppress(OSError, StorageError):
        workspace.store.remove(f"{folder}/{part.number}-{part.of}")


def read_notes(store: ObjectStore, folder: str = PARTS) -> dict[Part, PartNote]:
    found: dict[Part, PartNote] = {}
    for name in list(store.names(f"{folder}/")):
        with contextlib.suppress(OSError, StorageError, msgspec.DecodeError, ValueError):
            number, of = map(int, name.rpartition("/")[2].split("-"))
            note = msgspec.json.decode(read_small(store, name), type=PartNote)
            found[Part(number, of)] = note
    return found


class CutSources:
    """How the sources of a job are cut, as its parts have written it down."""

    def __init__(self, workspace: WorkArea) -> None:
        self._workspace = workspace
        self._cuts: dict[int, list[Segment] | None] = {}

    def of(self, source: int) -> list[Segment] | None:
        """None: no part has opened it yet."""
        if source not in self._cuts:
            content = self._workspace.cut(source)
            # Only the last one is kept, for the next lease of the same file: all segments of
            # 100 TB would take a gigabyte.
            self._cuts = {source: None}
            if content is not None:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    self._cuts[source] = msgspec.json.decode(content, type=list[Segment])
        return self._cuts[source]

    def segments(self, lease: Lease) -> list[Segment] | None:
        """Of a lease; None: one of its sources was not opened yet."""
        found: list[Segment] = []
        for source in range(lease.first, lease.stop):
            cut = self.of(source)
            if cut is None:
                return None
            found += segments_in(lease, cut)
        return found


def missing_leases(
    leases: Iterable[Lease], cuts: CutSources, complete: CompleteSegments
) -> list[Lease]:
    """The leases of which a unit is not recorded."""
    missing: list[Lease] = []
    for lease in leases:
        segments = cuts.segments(lease)
        if segments is None or any((s.source, s.number) not in complete for s in segments):
            missing.append(lease)
    return missing


def refuse_missing(missing: list[Lease], total: int, notes: Mapping[Part, Any], where: str) -> None:
    """Raises unless everything is recorded, and says what to run again."""
    if not missing:
        return
    sizes = sorted({part.of for part in notes})
    hint = "run the parts that are missing, then `finish` again; `tokenmill status` shows each"
    if len(sizes) == 1:
        numbers = sorted({lease.number % sizes[0] for lease in missing})
        which = f"run these parts (again): {_shown(numbers)} of {sizes[0]}"
        hint = f"{which}; then `finish`. `tokenmill status` shows each"
    numbers = [lease.number for lease in missing]
    raise RefusedError(
        f"{where}: {len(missing)} of {total} leases are not complete: {_shown(numbers)}", hint=hint
    )


def _shown(numbers: list[int]) -> str:
    more = f" and {len(numbers) - MANY} more" if len(numbers) > MANY else ""
    return ", ".join(map(str, numbers[:MANY])) + more
