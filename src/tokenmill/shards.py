"""A stream of tokens as the shards of a format: framed anew, cut anew, document by document.

The stream is read as it is stored, with one format's separators; a shard is seen as another
format wants it. Documents keep their number, so that a document's end moves by as many tokens as
its frame and those before it grow. No I/O here: a `Stored` does that.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Format, Info, stored_dtype
from tokenmill.pack import CutRule, StreamCounts, StreamState, add_separators, frame_of
from tokenmill.texts import I64

BLOCK_TOKENS = 1 << 22
BLOCK_DOCUMENTS = 1 << 18
LOOKED_THROUGH = 1 << 12  # so many ends are read at once rather than halved further


class Stored(Protocol):
    """A stream as it is on disk."""

    name: str
    settings: PlanSettings
    tokens: int
    documents: int

    def read(self, start: int, stop: int) -> Array:
        """Tokens [start, stop)."""

    def ends_of(self, first: int, stop: int) -> I64:
        """Where documents [first, stop) end."""

    def origins_of(self, first: int, stop: int) -> tuple[list[str], I64, I64]:
        """Names of all sources; source and row of documents [first, stop)."""


class Reframed:
    """A stored stream with the separators and the dtype of other settings."""

    def __init__(self, stored: Stored, settings: PlanSettings) -> None:
        self.stored, self.settings = stored, settings
        self.name, self.documents = stored.name, stored.documents
        self.dtype = stored_dtype(settings)
        (self._before, self._after), (before, after) = frame_of(stored.settings), frame_of(settings)
        width = len(self._before) + len(self._after)
        self._grows = len(before) + len(after) - width
        self.tokens = stored.tokens + self._grows * stored.documents
        self._same = (self._before, self._after) == (before, after)
        # `E a E b` and `a E b E` are one another moved by a token, wherever documents end.
        self._moved = 0
        if width == 1 and self._grows == 0 and not self._same and before + after == self._frame():
            self._moved = 1 if after else -1

    def _frame(self) -> list[int]:
        return self._before + self._after

    def ends(self, first: int, stop: int) -> I64:
        ends = self.stored.ends_of(first, stop)
        return ends + self._grows * np.arange(first + 1, stop + 1) if self._grows else ends

    def end(self, document: int) -> int:
        return int(self.ends(document, document + 1)[0]) if document >= 0 else 0

    def ended_by(self, token: int) -> int:
        """How many documents end at or before a token."""
        low, high = 0, self.documents
        while high - low > LOOKED_THROUGH:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.end(middle) <= token else (low, middle)
        return low + int(np.searchsorted(self.ends(low, high), token, side="right"))

    def read(self, start: int, stop: int) -> Array:
        if stop <= start:
            return np.zeros(0, self.dtype)
        if self._same:
            tokens = self.stored.read(start, stop)
        elif self._moved:
            tokens = self._read_moved(start, stop)
        else:
            tokens = self._read_framed(start, stop)
        return tokens.astype(self.dtype, copy=False)

    def _holding(self, token: int, first: int) -> int:
        """The number behind the document that holds the token before this one."""
        last = self.ended_by(token)
        return (
            last if self.end(last - 1) == token and last > first else min(last + 1, self.documents)
        )

    def _read_moved(self, start: int, stop: int) -> Array:
        low, high = start + self._moved, stop + self._moved
        parts = [self.stored.read(max(0, low), min(self.tokens, high))]
        separator = np.array(self._frame(), parts[0].dtype)
        if low < 0:
            parts.insert(0, separator)
        if high > self.tokens:
            parts.append(separator)
        return np.concatenate(parts)

    def _read_framed(self, start: int, stop: int) -> Array:
        """Of the first and the last document only what is wanted: one may be all of a stream."""
        first = self.ended_by(start)
        last = self._holding(stop, first) - 1
        begin = self.end(first - 1)
        if first == last:
            return self._read_part(first, start - begin, stop - begin)
        parts = [self._read_part(first, start - begin, self.end(first) - begin)]
        parts.append(self._read_documents(first + 1, last))
        parts.append(self._read_part(last, 0, stop - self.end(last - 1)))
        return np.concatenate(parts)

    def _read_part(self, document: int, low: int, high: int) -> Array:
        """Tokens [low, high) of a document, counted with its new frame."""
        before, after = (np.array(ids, self.dtype) for ids in frame_of(self.settings))
        stored = self.stored.ends_of(max(0, document - 1), document + 1)
        begin = (int(stored[0]) if document else 0) + len(self._before)
        length = int(stored[-1]) - len(self._after) - begin
        text_low, text_high = (min(max(0, at - len(before)), length) for at in (low, high))
        text = self.stored.read(begin + text_low, begin + text_high).astype(self.dtype, copy=False)
        behind = len(before) + length
        tail = after[max(0, low - behind) : max(0, high - behind)]
        return np.concatenate((before[low:high], text, tail))

    def _read_documents(self, first: int, stop: int) -> Array:
        ends = self.stored.ends_of(first, stop)
        begin = int(self.stored.ends_of(first - 1, first)[0]) if first else 0
        lengths = np.diff(ends, prepend=begin)
        tokens = self.stored.read(begin, int(ends[-1]) if len(ends) else begin)
        text = np.ones(len(tokens), bool)
        starts = np.cumsum(lengths) - lengths
        for place in range(len(self._before)):
            text[starts + place] = False
        for place in range(len(self._after)):
            text[starts + lengths - 1 - place] = False
        lengths = lengths - len(self._before) - len(self._after)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        framed, _ = add_separators(
            tokens[text], offsets, lengths, self.settings, np.dtype(self.settings.dtype)
        )
        return framed


class Cut(NamedTuple):
    """Tokens and documents of one file to be. Under an exact cut, documents that end in it."""

    split: str
    number: int
    of: int
    first_token: int
    tokens: int
    first_document: int
    documents: int


def cut_stream(stream: Reframed, rule: CutRule) -> list[Cut]:
    """The files of a stream, in its order, by the same rule that places units in a run."""
    sizes: dict[tuple[str, int], int] = {}
    state = StreamState()
    for first in range(0, stream.documents, BLOCK_DOCUMENTS):
        ends = stream.ends(first, min(first + BLOCK_DOCUMENTS, stream.documents))
        starts = np.concatenate((np.array([state.tokens]), ends[:-1])) - state.tokens
        counts = StreamCounts(int(ends[-1]) - state.tokens, len(ends), 0)
        pieces, state = rule.lay_out(state, counts, starts)
        for piece in pieces:
            key = piece.split, piece.file
            sizes[key] = sizes.get(key, 0) + piece.stop - piece.start
    files = [(split, tokens) for (split, _), tokens in sizes.items()]
    return number_cuts(stream, files)


def number_cuts(stream: Reframed, files: list[tuple[str, int]]) -> list[Cut]:
    """Split and tokens of each file to cuts: numbered without holes, documents counted."""
    cuts: list[Cut] = []
    token = document = 0
    of = Counter(split for split, _ in files)
    numbers = Counter[str]()
    for at, (split, tokens) in enumerate(files):
        token += tokens
        last = at == len(files) - 1
        stop = stream.documents if last else stream.ended_by(token)
        cuts.append(
            Cut(split, numbers[split], of[split], token - tokens, tokens, document, stop - document)
        )
        numbers[split] += 1
        document = stop
    return cuts


def settle_last(cuts: list[Cut], settings: PlanSettings) -> list[tuple[str, int]]:
    """Split and tokens of each file after `--last-shard` was minded: merged, kept or refused."""
    files = [(cut.split, cut.tokens) for cut in cuts]
    if settings.last_shard == "keep":
        return files
    for split in dict.fromkeys(cut.split for cut in cuts):
        mine = [at for at, cut in enumerate(cuts) if cut.split == split]
        last = mine[-1]
        if cuts[last].tokens >= settings.min_shard_tokens:
            continue
        if settings.last_shard == "merge" and len(mine) > 1:
            files[mine[-2]] = (split, files[mine[-2]][1] + files[last][1])
            files[last] = ("", 0)
            continue
        raise TokenmillError(
            f"the last {split} shard would hold {cuts[last].tokens:,} tokens, fewer than "
            f"--min-shard-tokens {settings.min_shard_tokens:,}",
            hint="start anew with --overwrite and another --shard-tokens, or --last-shard "
            + ("merge or keep" if settings.last_shard == "refuse" else "keep"),
        )
    return [(split, tokens) for split, tokens in files if split]


def split_large(stream: Reframed, cuts: list[Cut], fmt: Format) -> list[tuple[str, int]]:
    """Split and tokens of each file, a file too large for its format's offsets cut at documents."""
    if fmt.max_bytes is None:
        return [(cut.split, cut.tokens) for cut in cuts]
    files: list[tuple[str, int]] = []
    for cut in cuts:
        tokens = size = 0
        for first, lengths in _lengths(stream, cut):
            sizes = fmt.document_bytes(stream.settings, lengths)
            if len(sizes) and int(sizes.max()) > fmt.max_bytes:
                worst = first + int(sizes.argmax())
                raise too_long(stream, fmt, worst, int(lengths.max()))
            done = 0
            while done < len(sizes):
                fits = int(np.searchsorted(np.cumsum(sizes[done:]), fmt.max_bytes - size, "right"))
                tokens += int(lengths[done : done + fits].sum())
                size += int(sizes[done : done + fits].sum())
                done += fits
                if done < len(sizes):
                    files.append((cut.split, tokens))
                    tokens = size = 0
        files.append((cut.split, tokens))
    return files


def _lengths(stream: Reframed, cut: Cut) -> Iterator[tuple[int, I64]]:
    """First document and lengths, some documents of a cut at a time."""
    before = stream.end(cut.first_document - 1)
    stop = cut.first_document + cut.documents
    for first in range(cut.first_document, stop, BLOCK_DOCUMENTS):
        ends = stream.ends(first, min(first + BLOCK_DOCUMENTS, stop))
        yield first, np.diff(ends, prepend=before)
        before = int(ends[-1])


def too_long(stream: Reframed, fmt: Format, document: int, tokens: int) -> UsageError:
    names, sources, rows = stream.stored.origins_of(document, document + 1)
    return UsageError(
        f"{names[int(sources[0])]}, row {int(rows[0])}: a document of {tokens:,} tokens; "
        f"a file of {fmt.name} cannot hold it",
        hint="drop it with --max-tokens, or use another --format",
    )


def check_cut(stream: Reframed, cut: Cut) -> None:
    """What the trainer could not read is refused before it has a name."""
    settings = stream.settings
    fmt = get_format(settings.format)
    name = fmt.file_name(settings, cut.split, cut.number, cut.of)
    limit = fmt.max_shard_tokens(settings)
    if limit is not None and cut.tokens > limit:
        raise TokenmillError(
            f"{name}: {cut.tokens} tokens; {fmt.name} reads at most {limit} in one file",
            hint="use --cut exact, or a smaller --shard-tokens",
        )
    if fmt.max_documents is not None and cut.documents > fmt.max_documents:
        raise TokenmillError(
            f"{name}: {cut.documents} documents; {fmt.name} counts at most {fmt.max_documents}",
            hint="prepare the inputs in several parts",
        )
    if fmt.max_document_tokens is not None:
        for first, lengths in _lengths(stream, cut):
            if len(lengths) and int(lengths.max()) > fmt.max_document_tokens:
                raise too_long(stream, fmt, first + int(lengths.argmax()), int(lengths.max()))


def check_train_shards(cuts: list[Cut], fmt: Format) -> None:
    """Also where all is held out, and there is none."""
    found = sum(cut.split == "train" for cut in cuts)
    if 1 < fmt.min_train_shards > found:
        raise TokenmillError(
            f"{fmt.trainer} needs {fmt.min_train_shards} train shards or more; there is "
            f"{found or 'none'}",
            hint="start anew with --overwrite and a smaller --shard-tokens",
        )


class ShardView:
    """One file to be, as its format sees it (`formats.base.Shard`)."""

    def __init__(self, stream: Reframed, cut: Cut) -> None:
        self.stream, self.settings = stream, stream.settings
        self.split, self.number, self.of = cut.split, cut.number, cut.of
        self.first_token, self.tokens = cut.first_token, cut.tokens
        self.first_document, self.documents = cut.first_document, cut.documents
        self._cut = cut

    @property
    def path(self) -> str:
        fmt = get_format(self.settings.format)
        return fmt.file_name(self.settings, self.split, self.number, self.of)

    def lengths(self) -> Iterator[I64]:
        for _, lengths in _lengths(self.stream, self._cut):
            yield lengths

    def origins(self) -> Iterator[tuple[list[str], I64, I64]]:
        for first, lengths in _lengths(self.stream, self._cut):
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


def tokens_of(shard: ShardView) -> Generator[Any, None, Info]:
    """The buffers of a token file, in any format."""
    fmt = get_format(shard.settings.format)
    if fmt.write is not None:
        return (yield from fmt.write(shard))
    yield fmt.header(shard.settings, shard.tokens)
    yield from shard.bare()
    return {}


def documents_between(stream: Reframed, first: int, end: int | None) -> int:
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
