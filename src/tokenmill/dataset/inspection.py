"""What is in a dataset: how it was made, how long its documents are, where each came from.

Everything is read from the manifest, the index and the token files. The index is read in blocks,
so that a billion documents take no more memory than a million.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import heapq
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tokenmill.amounts import counted
from tokenmill.dataset.loader import Dataset, open_dataset
from tokenmill.dataset.verification import read_run
from tokenmill.dataset.views import damaged
from tokenmill.errors import TokenmillError, UsageError, did_you_mean
from tokenmill.inputs.rows.prepared import PREPARED
from tokenmill.output.commit import QUARANTINE
from tokenmill.output.prepared.reader import FINGERPRINT
from tokenmill.planning.mixture.table import MixRow, manifest_rows
from tokenmill.system.store import Place, Store, lines, read_range
from tokenmill.texts import I64
from tokenmill.tokenizer.encoders.decoding import Decoder, encoding_of, open_decoder

INDEX_DOCUMENTS = 1 << 20
LARGEST_SOURCES = 10
COUNTERS = 1 << 16
MADE = ("finished", "seconds", "packages", "encoder")  # of run.json


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Documents of `low` to `high` tokens, both included."""

    low: int
    high: int
    documents: int
    tokens: int


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Document lengths in tokens, separator included. `median`: the lower one of two."""

    documents: int
    tokens: int
    minimum: int
    median: int
    mean: float
    maximum: int
    histogram: list[Bin]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset at a glance; all but `made` follows from the manifest and the index."""

    directory: str
    settings: dict[str, Any]
    fingerprint: str
    counts: dict[str, int]
    splits: list[dict[str, Any]]
    files: list[dict[str, Any]]
    bytes: int
    bytes_per_token: float
    lengths: Lengths
    sources: int
    largest_sources: list[dict[str, Any]]
    made: dict[str, Any]
    mixture: list[MixRow] = []

    def __repr__(self) -> str:
        return (
            f"Summary({self.directory!r}: {counted(self.counts['documents'], 'document')}, "
            f"{counted(self.counts['tokens'], 'token')}, {counted(self.sources, 'source')})"
        )


class PreparedOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the training split of a prepared dataset, and what that was made from."""

    document: int
    source: str
    row: int


class DocumentView(msgspec.Struct, frozen=True, kw_only=True):
    """One document: where it came from, where it is, and what it says."""

    split: str
    document: int
    documents: int
    source: str
    row: int
    first_token: int  # in its split
    tokens: int
    cut: str  # how it is cut by the border of its split; '' where it is whole
    places: list[dict[str, Any]]  # file, first token in it, tokens
    ids: list[int]
    pieces: list[str]  # each token's bytes as readable text
    specials: list[int]  # which of `ids` are special tokens, by position
    text: str
    token: int = -1  # the position in `ids` that was asked for; -1: the document was
    character: int = -1  # where in `text` that token begins
    origin: PreparedOrigin | None = None  # where its source is a prepared dataset that is at hand

    def __repr__(self) -> str:
        begin = self.text[:60] + "..." * (len(self.text) > 60)
        return (
            f"DocumentView({self.split} {self.document:,} of {self.documents:,}: {self.tokens:,} "
            f"tokens, {self.source!r} row {self.row:,}, {begin!r})"
        )


def inspect(directory: Place) -> Summary:
    """Settings, files, splits, counts, document lengths and largest sources of a dataset."""
    dataset = open_dataset(directory)
    manifest = dataset.manifest
    counts = manifest.counts
    run = read_run(dataset.store) or {}
    mixture = manifest_rows(manifest.plan["settings"], manifest.sources)
    # Text is counted where it is encoded, also that of documents which a mixture does not take.
    texts = [source for source in manifest.sources if source.get("as") != PREPARED.name]
    encoded = sum(source["tokens"] for source in texts)
    for train in (source["train"] for source in texts if mixture):
        encoded += train["there_tokens"] - train["taken_tokens"]
    return Summary(
        directory=dataset.store.where(),
        settings=manifest.plan["settings"],
        fingerprint=manifest.fingerprint,
        counts=counts,
        splits=msgspec.to_builtins(dataset.splits),
        files=[
            {"path": f.path, "split": f.split, "tokens": f.tokens, "size": f.size}
            for f in dataset.token_files
        ],
        bytes=sum(entry.size for entry in manifest.files),
        bytes_per_token=round(counts["text_bytes"] / max(1, encoded), 4),
        lengths=document_lengths(dataset),
        sources=len(manifest.sources),
        largest_sources=heapq.nsmallest(
            LARGEST_SOURCES, manifest.sources, key=lambda s: (-s["tokens"], s["name"])
        ),
        made={key: run[key] for key in MADE if key in run},
        mixture=mixture,
    )


def document_lengths(dataset: Dataset) -> Lengths:
    store = dataset.store
    names = [file.path for file in dataset.manifest.files if file.kind == "ends"]
    for name in names:
        dataset.check_size(name)
    documents = np.zeros(65, np.int64)
    tokens = np.zeros(65, np.int64)
    low, high = (1 << 62), 0
    for block in _length_blocks(store, names):
        # 0 for 0, else 1 + the power of two at or below: exact, frexp splits binary exponents.
        exponents = np.frexp(block.astype(np.float64))[1]
        documents += np.bincount(exponents, minlength=65)
        # Sums of integers as float64 weights are exact below 2**53 tokens a block.
        tokens += np.bincount(exponents, weights=block, minlength=65).astype(np.int64)
        low, high = min(low, int(block.min())), max(high, int(block.max()))
    total, used = int(documents.sum()), np.flatnonzero(documents).tolist()
    return Lengths(
        documents=total,
        tokens=int(tokens.sum()),
        minimum=low if total else 0,
        median=_median(store, names, total, low, high) if total else 0,
        mean=round(int(tokens.sum()) / max(1, total), 2),
        maximum=high,
        histogram=[
            Bin(
                low=(1 << power) >> 1,
                high=(1 << power) - 1,
                documents=int(documents[power]),
                tokens=int(tokens[power]),
            )
            for power in (range(used[0], used[-1] + 1) if used else ())
        ],
    )


def _length_blocks(store: Store, names: list[str]) -> Iterator[I64]:
    """Lengths of all documents, some at a time, from where each ends."""
    for name in names:
        before = 0
        for at in range(0, store.size(name) or 0, INDEX_DOCUMENTS * 8):
            content = read_range(store, name, at, INDEX_DOCUMENTS * 8)
            ends = np.frombuffer(content, "<u8").astype(np.int64)
            lengths = np.diff(ends, prepend=before)
            if int(lengths.min()) < 0:
                raise damaged(store.where(name), "documents that end before they begin")
            yield lengths
            before = int(ends[-1])


def _median(store: Store, names: list[str], total: int, low: int, high: int) -> int:
    """The lower median, exactly: each pass narrows the range 65,536-fold by counting."""
    rank = (total - 1) // 2
    while low < high:
        width = -(-(high - low + 1) // COUNTERS)
        counted = np.zeros(COUNTERS, np.int64)
        for block in _length_blocks(store, names):
            inside = block[(block >= low) & (block <= high)]
            counted += np.bincount((inside - low) // width, minlength=COUNTERS)
        upto = np.cumsum(counted)
        at = int(np.searchsorted(upto, rank, side="right"))
        rank -= int(upto[at - 1]) if at else 0
        low, high = low + at * width, min(high, low + (at + 1) * width - 1)
    return low


def inspect_document(
    directory: Place,
    *,
    document: int | None = None,
    token: int | None = None,
    split: str = "train",
    tokenizer: str | None = None,
) -> DocumentView:
    """A document by its number in a split, or by a token that it holds."""
    dataset = open_dataset(directory)
    where = dataset.store.where()
    if split not in dataset:
        hint = f"{did_you_mean(split, dataset)}there is: {', '.join(dataset) or 'none'}"
        raise UsageError(f"{where}: no split {split!r}", hint=hint)
    part = dataset[split]
    documents = part.documents
    try:
        if token is not None:
            token = token + len(part.tokens) if token < 0 else token
            document = documents.at(token)
        if document is None:
            raise UsageError("give document=N or token=N")
        start, stop = documents.span(document)
    except IndexError as error:
        raise UsageError(f"{where}: {split} has no {error}: numbers begin at 0") from None
    document = document + len(documents) if document < 0 else document
    source, row = documents.source(document)
    ids = part.tokens[start:stop].tolist()
    encoding = encoding_of(dataset.settings, read_run(dataset.store), tokenizer)
    decoder = open_decoder(encoding, dataset.settings)
    return DocumentView(
        split=split,
        document=document,
        documents=len(documents),
        source=source,
        row=row,
        first_token=start,
        tokens=stop - start,
        cut=cut_note(documents.whole_span(document), (start, stop), split),
        places=file_places(dataset, split, start, stop),
        ids=ids,
        pieces=[decoder.shown(i) for i in ids],
        specials=[at for at, i in enumerate(ids) if decoder.is_special(i)],
        text=_text_of(decoder, ids),
        token=-1 if token is None else token - start,
        character=-1 if token is None else len(_text_of(decoder, ids[: token - start])),
        origin=prepared_origin(dataset, source, row),
    )


def prepared_origin(dataset: Dataset, source: str, row: int) -> PreparedOrigin | None:
    """What a row of a source is, where the source is a prepared dataset that is where it was."""
    entry = next(one for one in dataset.manifest.sources if one["name"] == source)
    if entry.get("as") != PREPARED.name:
        return None
    with contextlib.suppress(KeyError, TypeError, TokenmillError, OSError):
        made_from = open_dataset((read_run(dataset.store) or {})["sources"][source]["path"])
        if FINGERPRINT + made_from.manifest.checksum == entry["fingerprint"]:
            documents = made_from["train"].documents
            # A document that began in the validation split is not a row.
            document = row + int(documents.whole_span(0)[0] < 0)
            name, its_row = documents.source(document)
            return PreparedOrigin(document=document, source=name, row=its_row)
    return None


def _text_of(decoder: Decoder, ids: list[int]) -> str:
    """The document's text without its separators; a special id elsewhere is shown."""
    text = [at for at, token in enumerate(ids) if not decoder.is_special(token)]
    return decoder.text(ids[text[0] : text[-1] + 1]) if text else ""


def cut_note(whole: tuple[int, int], here: tuple[int, int], split: str) -> str:
    if whole == here:
        return ""
    where = "begins in val" if whole[0] < here[0] else "goes on in train"
    return (
        f"cut by the border of its split: {here[1] - here[0]} of its {whole[1] - whole[0]} "
        f"tokens are in {split}, it {where}"
    )


def file_places(dataset: Dataset, split: str, start: int, stop: int) -> list[dict[str, Any]]:
    """The files that hold tokens [start, stop) of a split."""
    entry = next(s for s in dataset.splits if s.name == split)
    places = []
    for file in (file for file in dataset.token_files if file.split == split):
        begin = file.first_token - entry.first_token
        first, last = max(start, begin), min(stop, begin + file.tokens)
        if first < last:
            places.append({"path": file.path, "first_token": first - begin, "tokens": last - first})
    return places


# --- quarantined rows: quarantine.jsonl holds their bytes in base64 ---------------------------


class QuarantinedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it stands in its source, and why it was not encoded."""

    source: str
    row: int  # counted from 0
    line: int = -1  # of a text file, counted from 1; -1: there are no lines
    rows: int = 1  # more: a range that cannot be read
    part: str = ""  # of the file, that this range is in
    reason: str
    text: str  # bytes that are not UTF-8 are shown as \xNN
    length: int  # bytes; more than `text` holds where a long row was cut
    sha256: str = ""  # of the whole row, where it was cut

    @property
    def last(self) -> int:
        return self.row + self.rows - 1


class QuarantineReport(msgspec.Struct, frozen=True, kw_only=True):
    """`total`: rows that were quarantined, those of ranges included."""

    path: str
    total: int
    rows: list[QuarantinedRow]
    more: bool = False  # there are records after `rows`


class _Record(msgspec.Struct):
    source: str
    row: int
    reason: str
    bytes: str
    length: int
    line: int = -1
    rows: int = 1
    part: str = ""
    sha256: str = ""


def inspect_quarantine(directory: Place, *, limit: int | None = None) -> QuarantineReport:
    """The quarantined rows of a dataset, the first `limit` records of them."""
    dataset = open_dataset(directory)
    path, total = dataset.store.where(QUARANTINE), dataset.manifest.counts["quarantined"]
    if not any(entry.kind == "quarantine" for entry in dataset.manifest.files):
        return QuarantineReport(path="", total=total, rows=[])
    dataset.check_size(QUARANTINE)
    decode = msgspec.json.Decoder(_Record).decode
    records = lines(dataset.store, QUARANTINE)
    try:
        rows = [_readable(decode(line)) for line in itertools.islice(records, limit)]
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
        raise damaged(path, f"cannot be read: {error}") from None
    more = next(iter(records), None) is not None
    return QuarantineReport(path=str(path), total=total, rows=rows, more=more)


def _readable(record: _Record) -> QuarantinedRow:
    fields = msgspec.structs.asdict(record)
    content = base64.b64decode(fields.pop("bytes"), validate=True)
    return QuarantinedRow(**fields, text=content.decode("utf-8", "backslashreplace"))
