"""The input files of a mixture: those of each of its sources, every file in one source only."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from tokenmill.errors import InputError, TokenmillError, UsageError
from tokenmill.inputs.find import SourceListing, find_sources
from tokenmill.inputs.input_rules import EVERY, InputRules
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.opening.access import InputAccess
from tokenmill.inputs.remote.hub import ListCache
from tokenmill.inputs.source import Source
from tokenmill.planning.mixture.mix_file import DATASET, MixSource, Mixture
from tokenmill.planning.options import Options
from tokenmill.settings import PlanSettings
from tokenmill.system.buckets.address import is_bucket


def refuse_with_mixture(options: Options, inputs: Any) -> None:
    """What contradicts a mixture, or cannot be had with one."""
    if inputs:
        raise UsageError(
            "--mix: the file names all inputs", hint="leave the other inputs out, or --mix"
        )
    if options.val_inputs:
        raise UsageError(
            "--val-inputs: not with --mix", hint="use a fraction of the documents: --val 0.0005"
        )
    if options.limit_docs is not None or options.limit_tokens is not None:
        raise UsageError(
            "--limit-docs and --limit-tokens: not with --mix",
            hint="write a smaller total into the mix.toml",
        )
    if options.column_rules or options.kind_rules:
        raise UsageError(
            "--as, and --text-column for some of the files: not with --mix",
            hint="write text_column and as into the tables of the mix.toml",
        )


FindDataset = Callable[[str, PlanSettings], SourceListing]  # of a folder, as one source


def no_datasets(path: str, settings: PlanSettings) -> SourceListing:
    raise InputError(f"{path}: a prepared dataset cannot be opened here")


def find_mixture(
    mixture: Mixture,
    settings: PlanSettings,
    output: str | os.PathLike[str],
    pins: dict[str, str],
    shelf: ListCache,
    rules: InputRules,
    find_dataset: FindDataset,
    access: InputAccess,
) -> SourceListing:
    """All files and prepared datasets of all sources, each with the name of its source.

    `find_dataset`: opens a prepared dataset, and refuses one that does not fit the settings.
    `access`: opens input files.
    """
    listings = []
    for source in mixture.sources:
        try:
            own = _rules_of(source, rules, settings.text_column)
            files = [one for one in source.inputs if not one.startswith(DATASET)]
            datasets = [one for one in source.inputs if one.startswith(DATASET)]
            _refuse_of_text(source, settings, files, datasets)
            mine = [find_dataset(one.removeprefix(DATASET), settings) for one in datasets]
            if files:
                column = settings.text_column
                mine.append(find_sources(files, column, output, pins, shelf, own, access))
            listings.append(_together(mine))
        except TokenmillError as error:
            raise error.located(f"source {source.name}") from None
    found = [
        msgspec.structs.replace(file, mix=source.name)
        for source, listing in zip(mixture.sources, listings, strict=True)
        for file in listing.sources
    ]
    _refuse_in_two(found)
    return SourceListing(
        tuple(_named_together(found)),
        tuple(dict.fromkeys(skipped for one in listings for skipped in one.skipped)),
        {name: commit for one in listings for name, commit in one.revisions.items()},
    )


def _together(found: list[SourceListing]) -> SourceListing:
    return SourceListing(
        tuple(source for one in found for source in one.sources),
        tuple(skipped for one in found for skipped in one.skipped),
        {name: commit for one in found for name, commit in one.revisions.items()},
    )


def _refuse_of_text(
    source: MixSource, settings: PlanSettings, files: list[str], datasets: list[str]
) -> None:
    """What speaks of text or columns, and cannot be had of documents that are ids already."""
    if not datasets:
        return
    asked = {"--where": settings.where, "--text": settings.text_template}
    for option in (option for option, value in asked.items() if value):
        raise UsageError(
            f"{datasets[0]}: {option} reads columns, and a prepared dataset has none",
            hint=f"leave {option} out, or name the text files that the dataset was made of",
        )
    for key in ("text_column", "as_kind"):
        if getattr(source, key) and not files:
            raise UsageError(
                f"{key.removesuffix('_kind')}: says how text files are read, and the inputs are "
                "prepared datasets",
                hint="leave this key out",
            )


def _rules_of(source: MixSource, rules: InputRules, text_column: str) -> InputRules:
    """A text column or a kind that the file says holds for all inputs of the source."""
    if source.as_kind:
        kind_named(source.as_kind)
        rules = msgspec.structs.replace(rules, kinds=((EVERY, source.as_kind),))
    if source.text_column and source.text_column != text_column:
        rules = msgspec.structs.replace(rules, columns=((EVERY, source.text_column),))
    return rules


def _is_local(file: Source) -> bool:
    """Not a file that is still to be downloaded, nor a prepared dataset in a bucket."""
    return bool(file.path) and not is_bucket(file.path)


def _refuse_in_two(found: list[Source]) -> None:
    seen: dict[str, Source] = {}
    for file in found:
        place = os.path.realpath(file.path) if _is_local(file) else file.name
        if place in seen:
            mine = [seen[place].mix, file.mix]
            raise InputError(
                f"{file.path or file.name}: in two sources of the mixture ({' and '.join(mine)})",
                hint="each file may be in one source",
            )
        seen[place] = file


def _named_together(found: list[Source]) -> list[Source]:
    """Names from the common root of all local files; numbered in order."""
    local = [os.path.dirname(file.path) for file in found if _is_local(file)]
    root = os.path.commonpath(local) if local else ""
    return [
        msgspec.structs.replace(
            file,
            number=number,
            name=os.path.relpath(file.path, root) if _is_local(file) else file.name,
        )
        for number, file in enumerate(found)
    ]
