"""Find, identify and fingerprint the input files, before any work begins.

Arguments count in the order given; inside a directory or a glob, files come recursively in the
order of their paths' bytes, whatever the file system lists first and whatever the locale.
Whatever cannot be read as what it claims to be is an error here, not after an hour.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from stat import S_ISREG
from typing import IO, NamedTuple
from urllib.parse import urlsplit

import msgspec
import xxhash

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.kind import SIGNATURES, InputKind
from tokenmill.inputs.kinds import (
    extension_names,
    kind_named,
    kind_of_path,
    reading_for,
    stray_reason,
)
from tokenmill.inputs.listing import (
    RealPaths,
    SkippedFile,
    base_of,
    decodable,
    expand,
    refuse_twice,
)
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
from tokenmill.inputs.rows.row_rule import columns_needed
from tokenmill.inputs.source import SAMPLED, Source
from tokenmill.inputs.split_names import InputFiles, SplitChoice, choose_splits, named_splits
from tokenmill.settings import Reading

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

# Files up to this size are hashed whole; of larger ones as much, in blocks spread evenly.
FINGERPRINT_BYTES = 16 << 20
FINGERPRINT_BLOCK = 64 << 10

THREADS = 4  # that look at files
MOST_AT_A_TIME = 64


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
) -> SourceListing:
    """All files that the inputs name, checked and in order, and the skipped files with the reason.

    `exclude` is the output folder: where it is inside an input folder, a second run must not
    take what the first one wrote for input. `pins`: commits of the Hub that it is bound to.
    `rules`: splits, kinds and columns as the user says.
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

    def identify(number: int, file: str) -> Source:
        split = "val" if number >= first_val else ""
        if file in search.remote:
            source = _remote_source(number, search.remote[file], rules)
        else:
            name = os.path.relpath(file, root)
            source = _identify(number, file, name, _Expected.by(rules, file, text_column))
        return msgspec.structs.replace(source, split=split) if split else source

    sources = _identified(identify, files)
    shown = [SkippedFile(decodable(s.path), s.reason) for s in search.skipped]
    return SourceListing(tuple(sources), tuple(shown), search.revisions)


def _identified(identify: Callable[[int, str], Source], files: list[str]) -> list[Source]:
    """Every file as a source; what is wrong with any of them in one message."""

    def source_or_fault(number: int, file: str) -> Source | InputError:
        try:
            return identify(number, file)
        except InputError as error:
            return error

    # Several at a time: to hand over a small file takes as long as to look at it.
    size = max(1, min(MOST_AT_A_TIME, len(files) // (4 * THREADS)))

    def some(start: int) -> list[Source | InputError]:
        return list(map(source_or_fault, itertools.count(start), files[start : start + size]))

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        parts = pool.map(some, range(0, len(files), size))
        found = list(itertools.chain.from_iterable(parts))
    refuse_faults([fault for fault in found if isinstance(fault, InputError)])
    return [source for source in found if isinstance(source, Source)]


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


class _Expected(NamedTuple):
    """What the options say about a file."""

    as_kind: str
    text_column: str  # its own, or ''
    columns: tuple[str, ...]  # that it must have; of one: the text
    needed: bool  # these are for a template or a filter

    @classmethod
    def by(cls, rules: InputRules, path: str, text_column: str) -> _Expected:
        own = rules.column_for(path)
        names = rules.needed or (text_column,)
        if own:
            names = tuple(own if name == text_column else name for name in names)
        return cls(rules.kind_for(path), own, names, bool(rules.needed))


def at_hand(source: Source, path: str, reading: Reading) -> Source:
    """A source that is downloaded now: checked as any other file."""
    needed = columns_needed(reading_for(source, reading))
    columns = needed or (source.text_column or reading.text_column,)
    expected = _Expected(source.as_kind, source.text_column, columns, bool(needed))
    try:
        return _identify(source.number, path, source.name, expected, source)
    except InputError as error:  # the user knows the file by its URL
        raise error.located(source.name, instead_of=path) from None


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


def _identify(
    number: int, path: str, name: str, expected: _Expected, listed: Source | None = None
) -> Source:
    """`listed`: what was known before the download; its fingerprint has been compared."""
    if listed is None:
        kind, compression = kind_of_path(path, expected.as_kind)
    else:
        kind, compression = kind_named(listed.kind), listed.compression
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(f"{path!r}: a file name that is not UTF-8", hint="rename it") from None
    try:
        stat = os.stat(path)
        if not S_ISREG(stat.st_mode):
            raise InputError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            _check_magic(path, kind, compression, stat.st_size, file)
            fingerprint = listed.fingerprint if listed else _fingerprint(file, stat.st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not expected.as_kind:
        kind = kind.settled(path, compression)
    try:
        look = path, stat.st_mtime_ns, compression
        if expected.needed:
            facts = kind.check_columns(*look, expected.columns)
        else:
            facts = kind.check(*look, expected.columns[0])
    except SourceError as error:  # nothing has been read yet: the input itself is wrong
        raise InputError(error.message, hint=error.hint) from None
    return Source(
        number=number,
        name=name,
        path=path,
        kind=kind.name,
        compression=compression,
        size=stat.st_size,
        fingerprint=fingerprint,
        mtime_ns=stat.st_mtime_ns,
        ctime_ns=stat.st_ctime_ns,
        inode=stat.st_ino,
        rows=facts.rows,
        chained=facts.chained,
        as_kind=expected.as_kind,
        text_column=expected.text_column,
        split=listed.split if listed else "",
        twin=listed.twin if listed else 0,
    )


def _check_magic(path: str, kind: InputKind, compression: str, size: int, file: IO[bytes]) -> None:
    if size == 0 and (compression or not kind.may_be_empty):
        raise InputError(f"{path}: the file is empty", hint="remove it, or download it again")
    head = file.read(max(len(LFS_POINTER), 8))
    if head.startswith(LFS_POINTER):
        raise InputError(
            f"{path}: a git-LFS pointer, not the file itself",
            hint="run `git lfs pull` in that repository, or download the file",
        )
    if not compression:
        kind.check_head(path, size, head, file)
    elif not head.startswith(SIGNATURES[compression]) and not _skippable_frame(head, compression):
        raise InputError(
            f"{path}: does not begin like a .{compression} file",
            hint="give it the extension of what it is, or download it again",
        )


def _skippable_frame(head: bytes, compression: str) -> bool:
    """A zstd file may begin with a skippable frame (pzstd writes one)."""
    return compression == "zst" and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F


def _fingerprint(file: IO[bytes], size: int) -> str:
    """xxh3 over the content: all of it, or 256 blocks spread evenly with both ends."""
    digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
    if size <= FINGERPRINT_BYTES:
        file.seek(0)
        digest.update(file.read())
        return "xxh3:" + digest.hexdigest()
    blocks = FINGERPRINT_BYTES // FINGERPRINT_BLOCK
    for i in range(blocks):
        file.seek((size - FINGERPRINT_BLOCK) * i // (blocks - 1))
        digest.update(file.read(FINGERPRINT_BLOCK))
    return SAMPLED + digest.hexdigest()
