"""From durable units to a dataset: headers, index, manifest, names, in that order.

Token files grow under working names. The commit writes headers and index next to them, syncs
all, and writes down in the work folder which names it is about to give. Then the files get them,
and the manifest comes last. A crash in between is rolled back: the names are taken away again,
every piece is checked as after any crash, and the commit is made anew. So nothing is published
that was not found whole in the same run.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.config import PlanSettings, is_plain_name
from tokenmill.editions import Edition, Named, lay_out_edition, make_edition, table_of
from tokenmill.engines.books import Ledger
from tokenmill.engines.unit import stream_name, token_file
from tokenmill.errors import StorageError, TokenmillError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, stored_dtype
from tokenmill.manifest import (
    MANIFEST_VERSION,
    FileEntry,
    Manifest,
    SplitEntry,
    State,
)
from tokenmill.pack import StreamState, streams_of
from tokenmill.plan import Plan
from tokenmill.production import Made, Production
from tokenmill.shards import Cut, Reframed, ShardView, number_cuts, origins_in, settle_last
from tokenmill.steps import (
    explained,
    is_published,
    publish,
    read_file,
    read_piece,
    sync_directory,
    withdraw,
    write_atomic,
)
from tokenmill.storage import OutputFiles, Workspace

U64 = npt.NDArray[np.uint64]
PIECES = "index/pieces"
UNITS = "index/units"
QUARANTINE = "quarantine.jsonl"
IMPORTED = "imported"  # in the plan of a dataset whose token files are somebody else's


class _Grown:
    """A file in the work folder: its pieces in order, checked to be without gap or overlap."""

    def __init__(self, name: str, rows: U64) -> None:
        self.name = name
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        self.offsets, self.lengths, self.digests = rows[:, 1], rows[:, 2], rows[:, 3]

    def with_header(self, header: bytes) -> None:
        first = np.array([xxhash.xxh3_64_intdigest(header)], np.uint64)
        self.offsets = np.concatenate((np.zeros(1, np.uint64), self.offsets))
        self.lengths = np.concatenate((np.array([len(header)], np.uint64), self.lengths))
        self.digests = np.concatenate((first, self.digests))

    @property
    def size(self) -> int:
        return int(self.lengths.sum())

    def check(self, actual_size: int) -> None:
        ends = np.cumsum(self.lengths)
        if not np.array_equal(self.offsets, ends - self.lengths) or actual_size != self.size:
            raise StorageError(
                f"{self.name}: its pieces do not add up to the file ({actual_size} bytes on disk, "
                f"{self.size} in the journal)",
                hint="run again with --overwrite to start anew",
            )

    def take(self, other: _Grown, files: OutputFiles) -> None:
        """Its pieces behind ours, in the file too."""
        end = int(self.offsets[-1] + self.lengths[-1])
        shift = end - int(other.offsets[0])
        for offset, length in zip(other.offsets.tolist(), other.lengths.tolist(), strict=True):
            files.write(self.name, offset + shift, files.read(other.name, offset, length))
        self.offsets = np.concatenate((self.offsets, other.offsets + np.uint64(shift)))
        self.lengths = np.concatenate((self.lengths, other.lengths))
        self.digests = np.concatenate((self.digests, other.digests))

    def made(self) -> Made:
        pieces = list(zip(self.lengths.tolist(), self.digests.tolist(), strict=True))
        return Made(self.name, pieces, {})

    def named(self, path: str, kind: str, **fields: Any) -> Named:
        made = self.made()
        return Named(made.entry(path, kind, **fields), self.name, made.table())


class Commit(msgspec.Struct, frozen=True):
    """What is about to be published, durable before the first file gets its name."""

    names: dict[str, str]  # path in the dataset to name in the work folder
    manifest: Manifest


def commit(
    plan: Plan,
    ledger: Ledger,
    final: State,
    workspace: Workspace,
    check_interrupt: Callable[[], None] = lambda: None,
) -> Manifest:
    """Make the dataset visible, all at once. Every unit is durable when this is called."""
    decision = _prepare_commit(plan, ledger, final, workspace, check_interrupt)
    return carry_out(decision, workspace)


def carry_out(decision: Commit, workspace: Workspace) -> Manifest:
    """Write down what is about to be published, then publish it."""
    write_atomic(workspace.commit, msgspec.json.encode(decision))
    _publish(workspace, decision)
    return decision.manifest


def read_commit(workspace: Workspace) -> Commit:
    try:
        decision = msgspec.json.decode(read_file(workspace.commit), type=Commit)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"{workspace.commit}: cannot be read: {error}",
            hint="which files are its own cannot be told: look into the folder, remove it by hand",
        ) from None
    Manifest.decode(decision.manifest.encode(), str(workspace.commit))  # its own checksum
    paths = {entry.path for entry in decision.manifest.files}
    if IMPORTED in decision.manifest.plan:  # token files that were there before, and stay
        paths -= {e.path for e in decision.manifest.files if e.kind in ("tokens", "sidecar")}
    if decision.names.keys() != paths or not all(map(is_plain_name, decision.names.values())):
        raise StorageError(
            f"{workspace.commit}: names files that are not those of its manifest",
            hint="look into the folder, and remove it by hand",
        )
    return decision


def published(workspace: Workspace, decision: Commit) -> list[str]:
    """Of the files a commit names, those that have got their name: only they are ours."""
    return [
        path
        for path, working in decision.names.items()
        if is_published(workspace.files / working, workspace.output / path)
    ]


def _publish(workspace: Workspace, decision: Commit) -> None:
    """Names for all files, then the manifest. The work folder is left to the caller."""
    for path, working in decision.names.items():
        publish(workspace.files / working, workspace.output / path)
    for folder in workspace.folders_of(decision.names):
        sync_directory(folder)
    workspace.put(workspace.manifest, decision.manifest.encode())


def roll_back(workspace: Workspace) -> None:
    """After a crash: take back the names that a commit had begun to give."""
    decision = read_commit(workspace)
    taken = published(workspace, decision)
    for path in taken:
        withdraw(workspace.files / decision.names[path], workspace.output / path)
    for folder in workspace.folders_of(taken):
        sync_directory(folder)
    workspace.forget_commit()


def _prepare_commit(
    plan: Plan,
    ledger: Ledger,
    final: State,
    workspace: Workspace,
    check_interrupt: Callable[[], None],
) -> Commit:
    """Everything but the names: headers and index written, all files checked and synced."""
    files = OutputFiles(workspace)
    evidence = xxhash.xxh3_128_hexdigest(plan.fingerprint.encode() + ledger.evidence())
    production = Production(workspace, files, evidence, check_interrupt)
    with contextlib.closing(files), contextlib.closing(production):
        grown = {name: _Grown(name, rows) for name, rows in _by_file(ledger).items()}
        streams = _working_streams(plan, final, grown, workspace)
        named = _index_files(plan, grown)
        for _, working, _ in named:
            grown[working].check(files.size(working))
        editions = [
            _edition(plan, settings, streams, grown, files, production)
            for settings in plan.settings.layouts
        ]
        named = [file for edition in editions for file in edition.files] + named
        tables = {UNITS: _units_table(ledger), PIECES: b"".join(table for _, _, table in named)}
        named += [_write_table(path, content, files) for path, content in tables.items()]
        for _, working, _ in named:
            files.sync(working)
    return Commit(
        names={entry.path: working for entry, working, _ in named},
        manifest=_manifest(
            plan,
            ledger,
            [entry for entry, _, _ in named],
            [split for edition in editions for split in edition.splits],
        ),
    )


def _edition(
    plan: Plan,
    settings: PlanSettings,
    streams: list[_Working],
    grown: dict[str, _Grown],
    files: OutputFiles,
    production: Production,
) -> Edition:
    first = settings.format == plan.settings.format
    if first and not get_format(settings.format).framed:
        return _written_edition(plan, streams, grown, files, production)
    folder = plan.settings.folder_of(settings.format)
    return make_edition(list(streams), settings, folder, plan.fingerprint, production)


def _by_file(ledger: Ledger) -> dict[str, U64]:
    pieces = np.frombuffer(ledger.pieces, np.uint64).reshape(-1, 4)
    order = np.argsort(pieces[:, 0], kind="stable")
    bounds = np.searchsorted(pieces[order, 0], np.arange(len(ledger.file_ids) + 1))
    return {name: pieces[order[bounds[i] : bounds[i + 1]]] for name, i in ledger.file_ids.items()}


class _Working:
    """A stream as it lies in the work folder (`shards.Stored`)."""

    def __init__(
        self, plan: Plan, workspace: Workspace, splits: tuple[str, ...], state: StreamState
    ) -> None:
        self.name = stream_name(splits)
        self.settings = plan.settings.layouts[0]
        self.tokens, self.documents = state.tokens, state.documents
        self.sources = [source.name for source in plan.sources]
        self.folder = workspace.files
        self.header_bytes = get_format(self.settings.format).header_bytes(self.settings)
        self.dtype = stored_dtype(self.settings)
        self.files: list[tuple[int, str]] = []  # first token, working name
        self._runs: Any = None

    def read(self, start: int, stop: int) -> Array:
        parts = [np.zeros(0, self.dtype)]
        number = bisect.bisect_right(self.files, start, key=lambda file: file[0]) - 1
        while start < stop:
            first, working = self.files[number]
            following = self.files[number + 1][0] if number + 1 < len(self.files) else self.tokens
            upto = min(stop, following)
            parts.append(self._read(working, start - first, upto - start))
            start, number = upto, number + 1
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _read(self, working: str, at: int, count: int) -> Array:
        path, size = self.folder / working, self.dtype.itemsize
        with explained("read", path):
            content = read_piece(path, self.header_bytes + at * size, count * size)
        if len(content) != count * size:
            raise StorageError(f"{path}: shorter than it was")
        return np.frombuffer(content, self.dtype)

    def ends_of(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        path = self.folder / f"{self.name}.ends"
        if stop <= first:
            return np.zeros(0, np.int64)
        with explained("read", path):
            content = read_piece(path, first * 8, (stop - first) * 8)
        return np.frombuffer(content, "<u8").astype(np.int64)

    def origins_of(
        self, first: int, stop: int
    ) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if self._runs is None:
            path = self.folder / f"{self.name}.runs"
            self._runs = np.memmap(path, "<u8", mode="r").reshape(-1, 3)
        return self.sources, *origins_in(self._runs, first, stop)


def _working_streams(
    plan: Plan, final: State, grown: dict[str, _Grown], workspace: Workspace
) -> list[_Working]:
    """The streams that the workers wrote, with their files in order."""
    streams = []
    for splits, state in zip(streams_of(plan.settings.val), final.streams, strict=True):
        stream = _Working(plan, workspace, splits, state)
        token = 0
        for split in splits:
            prefix = token_file(split, 0)[:-6]
            for file in sorted((w for w in grown if w.startswith(prefix)), key=_file_number):
                stream.files.append((token, file))
                token += grown[file].size // stream.dtype.itemsize
        if token != state.tokens:
            raise TokenmillError(
                f"stream {stream.name}: {token} tokens in files, {state.tokens} placed"
            )
        streams.append(stream)
    return streams


def _file_number(working: str) -> int:
    return int(working.rpartition("-")[2])


def _written_edition(
    plan: Plan,
    streams: list[_Working],
    grown: dict[str, _Grown],
    files: OutputFiles,
    production: Production,
) -> Edition:
    """The format that the workers wrote: headers, and what lies beside the token files."""
    settings = plan.settings.layouts[0]
    fmt = get_format(settings.format)
    all_cuts: list[list[Cut]] = []
    working: dict[tuple[str, int], str] = {}
    for stream in streams:
        names = [file for _, file in stream.files]
        placed = [(file.split("-")[1], grown[file].size // stream.dtype.itemsize) for file in names]
        cuts = number_cuts(Reframed(stream, settings), placed)
        settled = settle_last(cuts, settings)
        if len(settled) < len(placed):
            names = _merge_last(names, cuts, settled, grown, files)
            cuts = number_cuts(Reframed(stream, settings), settled)
        working |= {(cut.split, cut.number): name for cut, name in zip(cuts, names, strict=True)}
        all_cuts.append(cuts)

    def token_file(shard: ShardView) -> tuple[Made, str]:
        name = working[shard.split, shard.number]
        header = fmt.header(settings, shard.tokens)
        if header:
            files.write(name, 0, header)
            grown[name].with_header(header)
        grown[name].check(files.size(name))
        return grown[name].made(), name

    reframed = [Reframed(stream, settings) for stream in streams]
    folder = plan.settings.folder_of(fmt.name)
    return lay_out_edition(reframed, all_cuts, folder, plan.fingerprint, production, token_file)


def _merge_last(
    names: list[str],
    cuts: list[Cut],
    settled: list[tuple[str, int]],
    grown: dict[str, _Grown],
    files: OutputFiles,
) -> list[str]:
    """Put a last shard that is too short behind the one before it: the same bytes at the same
    place, however often this is begun."""
    counts = Counter(split for split, _ in settled)
    kept: list[str] = []
    for cut, name in zip(cuts, names, strict=True):
        if cut.number < counts[cut.split]:
            kept.append(name)
        else:
            grown[kept[-1]].take(grown[name], files)
    return kept


def _index_files(plan: Plan, grown: dict[str, _Grown]) -> list[Named]:
    named: list[Named] = []
    for stream in streams_of(plan.settings.val):
        name = stream_name(stream)
        for kind in ("ends", "runs"):
            working = f"{name}.{kind}"
            if working in grown:
                named.append(grown[working].named(f"index/{working}", kind, stream=name))
    if "quarantine" in grown:
        named.append(grown["quarantine"].named(QUARANTINE, "quarantine"))
    return named


def _write_table(path: str, content: bytes, files: OutputFiles) -> Named:
    named = table_of(path, content)
    files.truncate(named.working, 0)
    files.write(named.working, 0, content)
    return named


def _units_table(ledger: Ledger) -> bytes:
    """Source, segment, part, first row, rows of every unit, in document order."""
    units = np.frombuffer(ledger.units, np.uint64).reshape(-1, 5)
    order = np.lexsort((units[:, 2], units[:, 1], units[:, 0]))
    return units[order].astype("<u8").tobytes()


def _manifest(
    plan: Plan, ledger: Ledger, entries: list[FileEntry], splits: list[SplitEntry]
) -> Manifest:
    totals = ledger.totals()
    if not totals.balanced:
        raise TokenmillError(f"rows do not add up: {totals.to_dict()}")
    for source, counts in zip(plan.sources, ledger.by_source, strict=True):
        if source.rows not in (-1, counts.rows) and not plan.settings.limited:
            raise TokenmillError(
                f"{source.name}: {counts.rows} rows were read, but it has {source.rows}",
                hint="run again with --overwrite to start anew",
            )
    sources = [
        {**source.identity(), **counts.to_dict()}
        for source, counts in zip(plan.sources, ledger.by_source, strict=True)
    ]
    return Manifest(
        version=MANIFEST_VERSION,
        fingerprint=plan.fingerprint,
        plan=plan.to_dict(),
        counts=totals.to_dict(),
        splits=splits,
        sources=sources,
        set_aside=[
            {"source": plan.sources[source].name, "row": row, "reason": reason}
            for source, row, reason in sorted(ledger.set_aside)
        ],
        files=entries,
    ).sealed()
