"""Find the input files, and have them checked and fingerprinted, before any work begins.

Arguments count in the order given; inside a directory or a glob, files come recursively in the
order of their paths' bytes, whatever the file system lists first and whatever the locale.
Nothing is opened here but lists that a folder holds about its files (`opening/` opens inputs).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from tokenmill.errors import InputError
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.kinds import extension_names, kind_of_path, stray_reason
from tokenmill.inputs.listing import (
    RealPaths,
    SkippedFile,
    base_of,
    decodable,
    expand,
    refuse_twice,
)
from tokenmill.inputs.opening.access import LOCAL, InputAccess
from tokenmill.inputs.opening.identify import InputFile
from tokenmill.inputs.remote.address import (
    RemoteFile,
    fixed_folder,
    has_magic,
    hub_address,
    is_url,
    path_below,
)
from tokenmill.inputs.remote.hub import ListCache, endpoint, find_on_hub
from tokenmill.inputs.remote.stores import find_in_store
from tokenmill.inputs.source import Source
from tokenmill.inputs.split_names import InputFiles, SplitChoice, choose_splits, named_splits


class SourceListing(msgspec.Struct, frozen=True):
    sources: tuple[Source, ...]
    skipped: tuple[SkippedFile, ...]
    revisions: dict[str, str] = {}  # of the Hub, as asked for -> commit


def find_sources(
    inputs: Sequence[str | os.PathLike[str]],
    text_column: str,
    exclude: str | os.PathLike[str] | None = None,
    pins: dict[str, str] | None = None,
    shelf: ListCache | None = None,
    rules: InputRules = InputRules(),  # noqa: B008 - frozen
    access: InputAccess = LOCAL,
) -> SourceListing:
    """All files that the inputs name, checked and in order, and the skipped files with the reason.

    `exclude` is the output folder: where it is inside an input folder, a second run must not
    take what the first one wrote for input. `pins`: commits of the Hub that it is bound to.
    `rules`: splits, kinds and columns as the user says. `access`: opens the files.
    """
    if not inputs:
        raise InputError("no inputs given", hint="name files, directories or globs")
    search = _Search(pins or {}, shelf or ListCache(lambda _: None))
    train = [search.find(os.fspath(one)) for one in inputs]
    held = [search.find(one) for one in rules.val_inputs]
    if exclude is not None:
        train = search.outside(train, exclude)
        held = search.outside(held, exclude)
    apart = {file for one in held for file in one.files}
    named = {file for one in train if not one.searched for file in one.files}
    train = [one.without(apart - named) for one in train]
    train = [search.without_strays(one, rules) for one in train]
    for one in (*train, *held):
        if os.path.isdir(one.argument) or is_url(one.argument):
            _refuse_mixture(one.argument, one.files, rules)
    files, val_files = choose_splits(train, rules.choice, search.skipped)
    if held:
        check = SplitChoice(all_splits=rules.choice.all_splits)
        val_files = choose_splits(held, check, search.skipped)[0]
        if not files:
            raise InputError("--val-inputs takes all inputs: nothing is left to train on")
    files += val_files
    refuse_twice(files, search.real_path)
    rules.refuse_idle(files)
    local = [os.path.dirname(path) for path in files if path not in search.remote]
    root = os.path.commonpath(local) if local else ""
    first_val = len(files) - len(val_files)

    found: list[Source | InputFile | InputError] = []
    for number, file in enumerate(files):
        try:
            if file in search.remote:
                found.append(_remote_source(number, search.remote[file], rules))
            else:
                name = os.path.relpath(file, root)
                found.append(InputFile.by(rules, number, file, name, text_column))
        except InputError as error:
            found.append(error)
    sources = [
        msgspec.structs.replace(source, split="val") if source.number >= first_val else source
        for source in _identified(found, access)
    ]
    shown = [SkippedFile(decodable(s.path), s.reason) for s in search.skipped]
    return SourceListing(tuple(sources), tuple(shown), search.revisions)


def _identified(found: list[Source | InputFile | InputError], access: InputAccess) -> list[Source]:
    """Every file as a source; what is wrong with any of them in one message."""
    seen = iter(access.identify([one for one in found if isinstance(one, InputFile)]))
    looked = [next(seen) if isinstance(one, InputFile) else one for one in found]
    refuse_faults([fault for fault in looked if isinstance(fault, InputError)])
    return [source for source in looked if isinstance(source, Source)]


class _Search:
    """Looks for the files of each argument, here and elsewhere."""

    def __init__(self, pins: dict[str, str], shelf: ListCache) -> None:
        self.pins, self.shelf = pins, shelf
        self.real_path = RealPaths()
        self.skipped: list[SkippedFile] = []
        self.remote: dict[str, RemoteFile] = {}  # by their names
        self.revisions: dict[str, str] = {}

    def find(self, argument: str) -> InputFiles:
        if is_url(argument) and not os.path.exists(argument):
            return self._elsewhere(argument)
        files = expand(argument, self.skipped)
        folder, searched = base_of(argument)
        below = [os.path.relpath(file, folder) for file in files]
        return InputFiles(argument, files, below, searched, named_splits(folder))

    def _elsewhere(self, argument: str) -> InputFiles:
        address = hub_address(argument, endpoint())
        if address is None:
            listed, passed_over = find_in_store(argument)
            pattern = urlsplit(argument).path.strip("/")
        else:
            pin = self.pins.get(address.root, "")
            self.revisions[address.root], listed, passed_over = find_on_hub(
                address, pin, self.shelf, extension_names()
            )
            pattern = address.path
        self.skipped += [SkippedFile(path, reason) for path, reason in passed_over]
        folder = fixed_folder(pattern) if has_magic(pattern) else pattern
        names = [file.name for file in listed]
        paths = [path_below(name) for name in names]
        self.remote.update(zip(names, listed, strict=True))
        below = [path.removeprefix(folder).strip("/") or path for path in paths]
        return InputFiles(argument, names, below, paths != [pattern])

    def without_strays(self, one: InputFiles, rules: InputRules) -> InputFiles:
        """A folder without what is hardly meant as data: a README, a licence, Markdown."""
        last = one.argument.rstrip("/").rsplit("/", 1)[-1]
        if not one.searched or (has_magic(last) and os.path.splitext(last)[1]):
            return one  # a glob that names an extension means it
        left = {file: why for file in one.files if (why := stray_reason(file, rules))}
        kept = one.without(set(left))
        if not kept.files and left:
            raise InputError(
                f"{one.argument}: no data in this directory, only {os.path.basename(min(left))} "
                "and the like",
                hint="name the files you want, for example with a glob, or use --as text",
            )
        self.skipped += [SkippedFile(file, why) for file, why in left.items()]
        return kept

    def outside(self, found: list[InputFiles], folder: str | os.PathLike[str]) -> list[InputFiles]:
        """Without the local files that are in the output folder."""
        inside = os.path.join(os.path.realpath(folder), "")
        ours = {
            file
            for one in found
            for file in one.files
            if file not in self.remote and self.real_path(file).startswith(inside)
        }
        self.skipped += [
            SkippedFile(file, "in the output folder")
            for one in found
            for file in one.files
            if file in ours
        ]
        kept = [one.without(ours) for one in found]
        if found and not any(one.files for one in kept):
            raise InputError("the only inputs are in the output folder")
        return kept


def _remote_source(number: int, file: RemoteFile, rules: InputRules) -> Source:
    """What is known about a file before it is downloaded: its name and its size."""
    forced = rules.kind_for(file.name)
    kind, compression = kind_of_path(file.name, forced)
    if file.size == 0 and (compression or not kind.may_be_empty):
        raise InputError(f"{file.name}: the file is empty", hint="leave it out")
    return Source(
        number=number,
        name=file.name,
        kind=kind.name,
        compression=compression,
        size=file.size,
        fingerprint=file.fingerprint,
        remote=file,
        as_kind=forced,
        text_column=rules.column_for(file.name),
    )


def refuse_faults(faults: list[InputError]) -> None:
    """All that is wrong with the inputs in one message."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        more = [f"... and {len(faults) - 20} more"] if len(faults) > 20 else []
        hints = dict.fromkeys(fault.hint for fault in faults if fault.hint)
        raise InputError(
            f"{len(faults)} inputs cannot be read:",
            lines=[fault.message for fault in faults[:20]] + more,
            hint="; ".join(list(hints)[:3]),
        )


def _refuse_mixture(folder: str, paths: list[str], rules: InputRules) -> None:
    """A readme.txt beside parquet files is hardly meant as a document."""
    paths = [path for path in paths if not rules.kind_for(path)]
    faults = []
    for path in paths:
        try:
            kind_of_path(path, searched=True)
        except InputError as error:
            faults.append(error)
    refuse_faults(faults)
    kinds = {kind_of_path(path)[0].name for path in paths}
    stray = [path for path in paths if path.lower().endswith(".json")]
    if stray and len(kinds) > 1 and is_url(folder):  # found out when it comes, after a day
        raise InputError(
            f"{folder}: holds .json files ({os.path.basename(stray[0])}) beside other inputs",
            hint="if they are about the data, name the others by a pattern, for example "
            f"{folder.rstrip('/')}/**/*.parquet; else give both by patterns of their own",
        )
    if "text" in kinds and len(kinds) > 1:
        text = next(path for path in paths if kind_of_path(path)[0].name == "text")
        raise InputError(
            f"{folder}: holds text files ({os.path.basename(text)}) beside other inputs",
            hint=f"say which you want: {folder}/**/*.txt, or the others by a pattern of their own",
        )
