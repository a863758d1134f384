"""`export --by-source`: the documents of one source alone, for trainers that blend sources.

A source is one of a mixture, or an input file where there is no mixture. All sources stay in the
manifest, with their numbers: splits and keys are made of these. The rows of the others count as
not chosen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokenmill.errors import UsageError, did_you_mean
from tokenmill.output.manifest import Manifest

MOST_SOURCES = 256  # each is a dataset of its own
# Of a source whose documents are not here, its entry keeps how its rows were read.
NOT_HERE = ("documents", "tokens", "text_bytes", "empty", "special_strings", "copies")


def source_names(manifest: Manifest) -> list[str]:
    """What `--by-source` makes a dataset of: sources of the mixture, or input files."""
    mixture = manifest.settings.mixture
    if mixture is not None:
        return mixture.names
    return [str(entry["name"]) for entry in manifest.sources]


def numbers_of(manifest: Manifest, only: str) -> tuple[int, ...]:
    """The input files of a source."""
    key = "name" if manifest.settings.mixture is None else "mix"
    found = tuple(n for n, entry in enumerate(manifest.sources) if entry.get(key) == only)
    if not found:
        names = source_names(manifest)
        raise UsageError(f"no source {only!r}", hint=did_you_mean(only, names) or str(names[:5]))
    return found


def refuse_one_source(manifest: Manifest) -> None:
    """Where documents of a source alone would not be in the splits that they are in."""
    settings = manifest.settings
    if settings.only:
        raise UsageError(
            f"--by-source: the dataset has the documents of {settings.only} alone already",
            hint="export the dataset that it was made of",
        )
    if settings.val.kind not in ("fraction", "none", "split", "given"):
        raise UsageError(
            f"--by-source: the validation split is cut off the stream of all sources (--val "
            f"{settings.val}), so that one source has another border, or none",
            hint="prepare with a fraction (--val 0.01) or --val none",
        )


def folder_names(manifest: Manifest) -> dict[str, str]:
    """A folder, which is also the beginning of file names, for each source by its name."""
    refuse_one_source(manifest)
    names = source_names(manifest)
    if len(names) > MOST_SOURCES:
        raise UsageError(
            f"--by-source: {len(names):,} input files would be as many datasets, {MOST_SOURCES} "
            "are the most",
            hint="name groups of files in a mix.toml, and prepare with --mix",
        )
    folders = {name: name.split("://")[-1].replace("/", "-").lstrip(".") for name in names}
    if manifest.settings.mixture is None:
        stems = {name: folder.partition(".")[0] for name, folder in folders.items()}
        folders = stems if len(set(stems.values())) == len(names) else folders
    twice = [folder for folder, count in Counter(folders.values()).items() if count > 1]
    if twice or "" in folders.values():
        raise UsageError(
            f"--by-source: several sources would have the name {(twice or [''])[0]!r}",
            hint="name groups of files in a mix.toml, and prepare with --mix",
        )
    return folders


def entries_of_one(manifest: Manifest, chosen: tuple[int, ...]) -> list[dict[str, Any]]:
    """The sources of the manifest, with the counts of what is here."""
    return [
        entry if number in chosen else _not_here(entry)
        for number, entry in enumerate(manifest.sources)
    ]


def _not_here(entry: dict[str, Any]) -> dict[str, Any]:
    left = {key: 0 if key in NOT_HERE else value for key, value in entry.items() if key != "copies"}
    left["not_chosen"] = entry["rows"] - entry["dropped"] - entry["quarantined"]
    if "train" in entry:
        taken = {"taken_documents": 0, "taken_tokens": 0, "copies": 0}
        left["train"] = {**entry["train"], **taken}
    return left


def total_counts(manifest: Manifest, entries: list[dict[str, Any]]) -> dict[str, int]:
    fields = [*manifest.counts, "not_chosen"]
    totals = {field: sum(entry.get(field, 0) for entry in entries) for field in fields}
    return {
        field: count
        for field, count in totals.items()
        if count or field not in ("filtered", "copies", "not_chosen")
    }
