"""Where a row of a source went: which document it became, and where its tokens are; or why not.

The index is asked by binary search, so that a billion documents take no more memory than ten.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tokenmill.amounts import counted
from tokenmill.dataset.inspection import cut_note, file_places
from tokenmill.dataset.loader import Dataset, open_dataset
from tokenmill.dataset.order.one_source import numbers_of
from tokenmill.dataset.streams import open_streams
from tokenmill.dataset.verification import read_run
from tokenmill.dataset.views import damaged
from tokenmill.errors import UsageError, did_you_mean
from tokenmill.output.commit import QUARANTINE
from tokenmill.settings import PlanSettings
from tokenmill.system.store import Place, lines

NAMES_SHOWN = 5


class RowDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that a row became, or the part of it that is in one split."""

    split: str
    document: int
    documents: int  # of the split
    first_token: int  # in its split
    tokens: int
    cut: str  # how the border of its split cuts it; '' where it is whole
    places: list[dict[str, Any]]  # file, first token in it, tokens


class RowView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row of a source went. `reason` says why it is not in the dataset."""

    source: str
    row: int
    state: str  # written, dropped, quarantined, not chosen, not read
    documents: list[RowDocument] = []
    reason: str = ""

    def __repr__(self) -> str:
        places = ", ".join(f"{one.split} document {one.document:,}" for one in self.documents)
        told = places or f"{self.state}, {self.reason}"
        return f"RowView({self.source!r} row {self.row:,}: {told})"


def inspect_row(directory: Place, *, source: str | os.PathLike[str], row: int) -> RowView:
    """Where a row of a source went, counted from 0; a negative row counts from the end.

    `source` is the name that the manifest gives a source, the end of that name, or its path.
    """
    dataset = open_dataset(directory)
    number = find_source(dataset, os.fspath(source))
    entry = dataset.manifest.sources[number]
    name, rows, asked = entry["name"], entry["rows"], row
    row = row + rows if row < 0 else row
    if not 0 <= row < rows:
        if asked >= 0 and dataset.settings.reads_part:
            why = f"{_limits(dataset.settings)} was reached after {counted(rows, 'row')} of it"
            return RowView(source=name, row=row, state="not read", reason=why)
        told = f"{name}: no row {asked}, it has {counted(rows, 'row')}"
        raise UsageError(told, hint="rows are counted from 0")
    documents = _documents(dataset, number, row)
    if documents is not None:
        why = "" if documents else "its split has no tokens"
        return RowView(source=name, row=row, state="written", documents=documents, reason=why)
    if (quarantined := _quarantine_reason(dataset, name, row)) is not None:
        return RowView(source=name, row=row, state="quarantined", reason=quarantined)
    left = [
        state
        for state, count in (("dropped", entry["dropped"]), ("not chosen", _not_chosen(entry)))
        if count
    ]
    if not left:
        raise damaged(dataset.store.where(), f"{name}, row {row}: is neither written nor dropped")
    reasons = {
        "dropped": _dropping(dataset.settings),
        "not chosen": [_why_not_chosen(dataset, number)],
    }
    why = " or ".join(reason for state in left for reason in reasons[state])
    return RowView(source=name, row=row, state=" or ".join(left), reason=why)


def _not_chosen(entry: dict[str, Any]) -> int:
    """Rows that a mixture does not take, or that a limit has left out of a shuffled dataset."""
    return int(entry.get("not_chosen", 0))


def _why_not_chosen(dataset: Dataset, source: int) -> str:
    settings = dataset.settings
    if settings.only and source not in numbers_of(dataset.manifest, settings.only):
        return f"only documents of {settings.only} are here"
    if settings.mixture is not None:
        return "other documents of its source are taken"
    return _limits(settings)


def find_source(dataset: Dataset, asked: str) -> int:
    """The number of a source: by its name in the manifest, its path, or the end of its name."""
    names = [str(entry["name"]) for entry in dataset.manifest.sources]
    if asked in names:
        return names.index(asked)
    run = read_run(dataset.store) or {}
    told = run.get("sources")
    paths = told if isinstance(told, dict) else {}
    path = os.path.realpath(asked)
    exact = [n for n, name in enumerate(names) if _is_path(paths.get(name), path)]
    end = "/" + os.path.normpath(asked).replace(os.sep, "/").lstrip("/")
    ends = [n for n, name in enumerate(names) if f"/{name}".endswith(end)]
    # A path may be of another machine: then its end is the name in the manifest.
    whole = [n for n, name in enumerate(names) if end.endswith(f"/{name}")]
    found = next(filter(None, (exact, ends, whole)), [])
    if len(found) == 1:
        return found[0]
    where = dataset.store.where()
    if not found:
        hint = did_you_mean(asked, names) + _listed(names, "the dataset has")
        raise UsageError(f"{where}: no source {asked!r}", hint=hint)
    raise UsageError(
        f"{where}: {len(found):,} sources end with {asked!r}",
        hint=_listed([names[n] for n in found], "give more of the name"),
    )


def _is_path(record: object, path: str) -> bool:
    there = record.get("path") if isinstance(record, dict) else None
    return isinstance(there, str) and os.path.realpath(there) == path


def _listed(names: list[str], what: str) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return f"{what}: {', '.join(names[:NAMES_SHOWN])}{more}"


def _documents(dataset: Dataset, source: int, row: int) -> list[RowDocument] | None:
    """What a row became, in the order of the splits: a document that the border of a split cuts
    is in both. None: the row became no document."""
    found: list[RowDocument] = []
    written = False
    for stream in open_streams(dataset):
        numbers, _ = stream.documents_of(source, row, row + 1)
        written |= len(numbers) > 0
        for entry in (split for split in stream.splits if split.tokens):
            documents = dataset[entry.name].documents
            for number in (numbers - documents.first).tolist():
                if not 0 <= number < len(documents):
                    continue
                start, stop = documents.span(number)
                found.append(
                    RowDocument(
                        split=entry.name,
                        document=number,
                        documents=len(documents),
                        first_token=start,
                        tokens=stop - start,
                        cut=cut_note(documents.whole_span(number), (start, stop), entry.name),
                        places=file_places(dataset, entry.name, start, stop),
                    )
                )
    return found if written else None


class _QuarantineRecord(msgspec.Struct):
    source: str
    row: int
    reason: str = ""
    rows: int = 1


def _quarantine_reason(dataset: Dataset, name: str, row: int) -> str | None:
    """Why a row is in quarantine.jsonl; None: the row is not."""
    if not any(file.kind == "quarantine" for file in dataset.manifest.files):
        return None
    dataset.check_size(QUARANTINE)
    decode = msgspec.json.Decoder(_QuarantineRecord).decode
    try:
        for record in map(decode, lines(dataset.store, QUARANTINE)):
            if record.source == name and record.row <= row < record.row + record.rows:
                return record.reason
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(dataset.store.where(QUARANTINE), f"cannot be read: {error}") from None
    return None


def _limits(settings: PlanSettings) -> str:
    limits = {"--limit-docs": settings.limit_docs, "--limit-tokens": settings.limit_tokens}
    return " or ".join(f"{option} {amount}" for option, amount in limits.items() if amount)


def _dropping(settings: PlanSettings) -> list[str]:
    """The options that drop rows. Which of them dropped a row, only its text can tell."""
    options = {
        "--drop-empty": settings.drop_empty,
        f"--min-tokens {settings.min_tokens}": settings.min_tokens,
        f"--max-tokens {settings.max_tokens}": settings.max_tokens,
        f"--where {settings.where!r}": settings.where,
    }
    return [option for option, given in options.items() if given]
