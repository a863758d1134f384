"""A stream of tokens cut into the shards of a format. No I/O here: a `StoredStream` does that."""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Format, Info
from tokenmill.settings import Layout
from tokenmill.texts import I64
from tokenmill.tokens.placement import CutRule, StreamCounts, StreamState
from tokenmill.tokens.reframe import BLOCK_DOCUMENTS, BLOCK_TOKENS, ReframedStream

FileSize = tuple[str, int]  # split and tokens of a file to be


@dataclasses.dataclass
class ShardView:
    """One file to be, as its format sees it (`formats.base.Shard`).

    Under an exact cut its documents are those that end in it.
    """

    stream: ReframedStream
    split: str
    number: int
    of: int
    first_token: int
    tokens: int
    first_document: int
    documents: int

    def __post_init__(self) -> None:
        self.settings, self.layout = self.stream.settings, self.stream.layout

    @property
    def path(self) -> str:
        fmt = get_format(self.layout.format)
        return fmt.file_name(self.layout, self.split, self.number, self.of)

    def numbered_lengths(self) -> Iterator[tuple[int, I64]]:
        """First document and lengths, some documents at a time."""
        before = self.stream.end(self.first_document - 1)
        stop = self.first_document + self.documents
        for first in range(self.first_document, stop, BLOCK_DOCUMENTS):
            ends = self.stream.ends(first, min(first + BLOCK_DOCUMENTS, stop))
            yield first, np.diff(ends, prepend=before)
            before = int(ends[-1])

    def lengths(self) -> Iterator[I64]:
        return (lengths for _, lengths in self.numbered_lengths())

    def origins(self) -> Iterator[tuple[list[str], I64, I64]]:
        for first, lengths in self.numbered_lengths():
            yield self.stream.stored.origins_of(first, first + len(lengths))

    def bare(self) -> Iterator[Array]:
        """All tokens, whatever documents they are of."""
        stop = self.first_token + self.tokens
        for start in range(self.first_token, stop, BLOCK_TOKENS):
            yield self.stream.read(start, min(start + BLOCK_TOKENS, stop))

    def blocks(self) -> Iterator[tuple[Array, I64]]:
        token = self.first_token
        for lengths in self.lengths():
            upto = np.cumsum(lengths)
            done = 0
            while done < len(lengths):
                before = int(upto[done - 1]) if done else 0
                many = int(np.searchsorted(upto, before + BLOCK_TOKENS, side="right"))
                stop = max(done + 1, many)
                size = int(upto[stop - 1]) - before
                yield self.stream.read(token, token + size), lengths[done:stop]
                token, done = token + size, stop


def cuts_of(stream: ReframedStream, rule: CutRule) -> list[ShardView]:
    """The shards that a stream becomes, by its layout and its format's limits."""
    fmt = get_format(stream.layout.format)
    sizes = _cut_stream(stream, rule.knowing(stream.tokens))
    shards = number_shards(stream, settle_last(sizes, stream.layout))
    if fmt.max_bytes is not None:
        files = [file for shard in shards for file in _split_large(shard, fmt, fmt.max_bytes)]
        shards = number_shards(stream, files)
    return shards


def _cut_stream(stream: ReframedStream, rule: CutRule) -> list[FileSize]:
    """In the stream's order, by the same rule that places units in a run."""
    sizes = Counter[tuple[str, int]]()
    state = StreamState()
    for first in range(0, stream.documents, BLOCK_DOCUMENTS):
        ends = stream.ends(first, min(first + BLOCK_DOCUMENTS, stream.documents))
        starts = np.concatenate((np.array([state.tokens]), ends[:-1])) - state.tokens
        counts = StreamCounts(int(ends[-1]) - state.tokens, len(ends), 0)
        pieces, state = rule.lay_out(state, counts, starts)
        for piece in pieces:
            sizes[piece.split, piece.file] += piece.stop - piece.start
    return [(split, tokens) for (split, _), tokens in sizes.items()]


def number_shards(stream: ReframedStream, files: list[FileSize]) -> list[ShardView]:
    """Shards numbered without holes, with their documents."""
    shards: list[ShardView] = []
    token = document = 0
    of = Counter(split for split, _ in files)
    numbers = Counter[str]()
    for at, (split, tokens) in enumerate(files):
        token += tokens
        last = at == len(files) - 1
        stop = stream.documents if last else stream.ended_by(token)
        place = token - tokens, tokens, document, stop - document
        shards.append(ShardView(stream, split, numbers[split], of[split], *place))
        numbers[split] += 1
        document = stop
    return shards


def settle_last(files: list[FileSize], layout: Layout) -> list[FileSize]:
    """The last file of each split as `--last-shard` says: merged, kept or refused."""
    if layout.last_shard == "keep":
        return files
    settled: list[FileSize] = []
    for split in dict.fromkeys(split for split, _ in files):
        *others, last = (tokens for name, tokens in files if name == split)
        if last < layout.min_shard_tokens:
            if layout.last_shard == "refuse" or not others:
                raise TokenmillError(
                    f"the last {split} shard would hold {last:,} tokens, fewer than "
                    f"--min-shard-tokens {layout.min_shard_tokens:,}",
                    hint="start over with --overwrite and another --shard-tokens, or --last-shard "
                    + ("merge or keep" if layout.last_shard == "refuse" else "keep"),
                )
            last += others.pop()
        settled += [(split, tokens) for tokens in (*others, last)]
    return settled


def _split_large(shard: ShardView, fmt: Format, limit: int) -> Iterator[FileSize]:
    """A shard too large for its format's offsets, cut at documents."""
    tokens = size = 0
    for first, lengths in shard.numbered_lengths():
        sizes = fmt.document_bytes(shard.layout, lengths)
        _refuse_longer(shard, first, lengths, sizes, limit)
        done = 0
        while done < len(sizes):
            fits = int(np.searchsorted(np.cumsum(sizes[done:]), limit - size, "right"))
            tokens += int(lengths[done : done + fits].sum())
            size += int(sizes[done : done + fits].sum())
            done += fits
            if done < len(sizes):
                yield shard.split, tokens
                tokens = size = 0
    yield shard.split, tokens


def _refuse_longer(shard: ShardView, first: int, lengths: I64, sizes: I64, limit: int) -> None:
    if int(sizes.max(initial=0)) <= limit:
        return
    document = first + int(sizes.argmax())
    names, sources, rows = shard.stream.stored.origins_of(document, document + 1)
    raise UsageError(
        f"{names[int(sources[0])]}, row {int(rows[0])}: a document of {int(lengths.max()):,} "
        f"tokens; a file of {shard.layout.format} cannot hold it",
        hint="drop it with --max-tokens, or use another --format",
    )


def check_shard(shard: ShardView) -> None:
    """What the trainer could not read is refused before it has a name."""
    fmt = get_format(shard.layout.format)
    limit = fmt.max_shard_tokens(shard.layout)
    if limit is not None and shard.tokens > limit:
        raise TokenmillError(
            f"{shard.path}: {shard.tokens} tokens; {fmt.name} reads at most {limit} in one file",
            hint="use --cut exact, or a smaller --shard-tokens",
        )
    if fmt.max_documents is not None and shard.documents > fmt.max_documents:
        raise TokenmillError(
            f"{shard.path}: {shard.documents} documents; {fmt.name} counts at most "
            f"{fmt.max_documents}",
            hint="prepare the inputs in several parts",
        )
    if fmt.max_document_tokens is not None:
        for first, lengths in shard.numbered_lengths():
            _refuse_longer(shard, first, lengths, lengths, fmt.max_document_tokens)


def check_train_shards(shards: list[ShardView], fmt: Format) -> None:
    """Also where all documents are in the validation split, and there is none."""
    found = sum(shard.split == "train" for shard in shards)
    if 1 < fmt.min_train_shards > found:
        raise TokenmillError(
            f"{fmt.trainer} needs {fmt.min_train_shards} train shards or more; there is "
            f"{found or 'none'}",
            hint="start over with --overwrite and a smaller --shard-tokens",
        )


def tokens_of(shard: ShardView) -> Generator[Any, None, Info | None]:
    """The buffers of a token file, in any format."""
    fmt = get_format(shard.layout.format)
    if fmt.write is not None:
        return (yield from fmt.write(shard))
    yield fmt.header(shard.layout, shard.tokens)
    yield from shard.bare()
    return None


def documents_between(stream: ReframedStream, first: int, end: int | None) -> int:
    """Documents of a split, tokens [first, end) of its stream; None: to its end.

    A document cut in two by an exact shard border counts on both sides.
    """
    before = stream.ended_by(first) if first else 0
    if end is None:
        return stream.documents - before
    if end == first:
        return 0
    through = stream.ended_by(end)
    cut_in_two = through < stream.documents and (through == 0 or stream.end(through - 1) < end)
    return through + cut_in_two - before


def document_from_row(runs: Array, documents: int, source: int, row: int) -> int:
    """The first document that comes from this row of this source, or from a later one; `runs` of
    (first document, source, row) are in the order of the sources and their rows."""
    at = bisect.bisect_right(
        range(len(runs)), (source, row), key=lambda i: (int(runs[i, 1]), int(runs[i, 2]))
    )
    if at == 0:
        return 0
    first, its_source, its_row = runs[at - 1].tolist()
    end = int(runs[at, 0]) if at < len(runs) else documents
    return min(end, first + row - its_row) if its_source == source else end


def origins_in(runs: Array, first: int, stop: int) -> tuple[I64, I64]:
    """Source and row of documents [first, stop), from runs of (first document, source, row)."""
    if first >= stop:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    numbers = range(len(runs))
    low = bisect.bisect_right(numbers, first, key=lambda i: int(runs[i, 0])) - 1
    high = bisect.bisect_left(numbers, stop, key=lambda i: int(runs[i, 0]))
    part = np.array(runs[low:high], np.int64)
    firsts = np.maximum(part[:, 0], first)
    lengths = np.diff(np.append(firsts, stop))
    rows = np.arange(first, stop, dtype=np.int64) + np.repeat(part[:, 2] - part[:, 0], lengths)
    return np.repeat(part[:, 1], lengths), rows
