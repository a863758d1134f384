"""A dataset in one format: its token files, what lies beside them, and what the manifest says.

The same code lays out the format that workers wrote (only headers and indexes are missing), each
further format of a run, and what `export` makes of a finished dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import xxhash

from tokenmill.config import PlanSettings
from tokenmill.formats import get_format
from tokenmill.formats.base import Buffers, Done, Info, Whole
from tokenmill.manifest import FileEntry, SplitEntry, checksum_of_digests
from tokenmill.pack import CutRule, streams_of
from tokenmill.production import Made, Production
from tokenmill.shards import (
    Cut,
    Reframed,
    ShardView,
    Stored,
    check_cut,
    check_train_shards,
    cut_stream,
    documents_between,
    number_cuts,
    settle_last,
    split_large,
    tokens_of,
)


class Named(NamedTuple):
    """A file of the dataset, its name in the work folder, and lengths and digests of its pieces."""

    entry: FileEntry
    working: str
    table: bytes


class Edition(NamedTuple):
    files: list[Named]
    splits: list[SplitEntry]


# Makes a token file of a shard, or finds it where the workers have written it.
TokenFile = Callable[[ShardView], tuple[Made, str]]


def cuts_of(stream: Reframed, rule: CutRule) -> list[Cut]:
    """The files that a stream becomes, by its settings and its format's limits."""
    cuts = cut_stream(stream, rule)
    cuts = number_cuts(stream, settle_last(cuts, stream.settings))
    fmt = get_format(stream.settings.format)
    return number_cuts(stream, split_large(stream, cuts, fmt))


def make_edition(
    stored: list[Stored],
    settings: PlanSettings,
    folder: str,
    fingerprint: str,
    production: Production,
) -> Edition:
    """Every file of one format, made from streams that are stored in another or the same."""
    rules = CutRule.all_of(settings)
    streams = [Reframed(one, settings) for one in stored]
    cuts = [cuts_of(stream, rule) for stream, rule in zip(streams, rules, strict=True)]

    def token_file(shard: ShardView) -> tuple[Made, str]:
        working = f"{settings.format}-tokens-{shard.split}-{shard.number:06d}"
        return production.make(working, tokens_of(shard)), working

    return lay_out_edition(streams, cuts, folder, fingerprint, production, token_file)


def lay_out_edition(
    streams: list[Reframed],
    cuts: list[list[Cut]],
    folder: str,
    fingerprint: str,
    production: Production,
    token_file: TokenFile,
) -> Edition:
    """Token files by `token_file`, everything else by the format."""
    settings = streams[0].settings
    fmt = get_format(settings.format)
    files: list[Named] = []
    splits: list[SplitEntry] = []
    done: list[Done] = []
    beside: list[Named] = []

    def add(path: str, buffers: Buffers) -> None:
        working = f"{fmt.name}-file-{len(beside):06d}"
        made = production.make(working, _generator(buffers))
        entry = made.entry(folder + path, "sidecar", format=fmt.name)
        beside.append(Named(entry, working, made.table()))

    check_train_shards([cut for mine in cuts for cut in mine], fmt)
    for stream, mine in zip(streams, cuts, strict=True):
        for cut in mine:
            check_cut(stream, cut)
        for cut in mine:
            shard = ShardView(stream, cut)
            made, working = token_file(shard)
            entry = made.entry(
                folder + shard.path,
                "tokens",
                format=fmt.name,
                split=cut.split,
                stream=stream.name,
                first_token=cut.first_token,
                tokens=cut.tokens,
            )
            files.append(Named(entry, working, made.table()))
            done.append(
                Done(
                    path=shard.path,
                    split=cut.split,
                    tokens=cut.tokens,
                    documents=cut.documents,
                    size=made.size,
                    info=made.info,
                )
            )
            for path, buffers in fmt.sidecars(shard):
                add(path, buffers)
        splits += _splits(stream, mine)
    for path, content in fmt.whole(Whole(settings=settings, fingerprint=fingerprint, shards=done)):
        add(path, [content])
    return Edition(files + beside, splits)


def _generator(buffers: Buffers) -> Generator[Any, None, Info]:
    yield from buffers
    return {}


def named_table(path: str, content: bytes, production: Production) -> Named:
    """A table of the index, which is one piece however long it is: the others are found by it."""
    named = table_of(path, content)
    production.make(named.working, _generator([content]))
    return named


def table_of(path: str, content: bytes) -> Named:
    """A table of the index as the manifest names it."""
    digest = xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")
    entry = FileEntry(
        path=path,
        kind=path.removeprefix("index/"),
        size=len(content),
        checksum=checksum_of_digests(digest),
        pieces=1,
    )
    return Named(entry, "-".join(path.split("/")), b"")


def _splits(stream: Reframed, cuts: list[Cut]) -> list[SplitEntry]:
    names = next(s for s in streams_of(stream.settings.val) if stream.name in (*s, "all"))
    entries = []
    token = 0
    for name in names:
        tokens = sum(cut.tokens for cut in cuts if cut.split == name)
        last = name == names[-1]
        entries.append(
            SplitEntry(
                name=name,
                format=stream.settings.format,
                stream=stream.name,
                first_token=token,
                tokens=tokens,
                documents=documents_between(stream, token, None if last else token + tokens),
            )
        )
        token += tokens
    return entries
