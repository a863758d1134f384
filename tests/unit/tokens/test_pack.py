"""Separators, splits and placement are arithmetic, and compared with the obvious way to do it."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.inputs.source import Source
from tokenmill.planning.options import Options, plan_settings
from tokenmill.settings import Val
from tokenmill.tokens.packing import PackedStream, Packer, add_separators, partition
from tokenmill.tokens.placement import CutRule, NeedStarts, StreamCounts, StreamState
from tokenmill.tokens.splits import document_hash

SETTINGS = plan_settings(Options(), "out")
lengths = st.lists(st.integers(0, 30), min_size=0, max_size=40)


EXPECTED_HASHES = [
    "0x33fe8bd4f9c57863",
    "0x568a9b0b1a2c05ec",
    "0x44e5b8b147ef718b",
    "0xccf66142bd52413d",
]


def rule(val: str, shard: int, by_document: bool) -> CutRule:
    parsed = Val.parse(val)
    splits = ("train",) if parsed.kind in ("none", "fraction") else ("val", "train")
    return CutRule(splits, shard, by_document, parsed)


def naive(documents: list[int], cut: CutRule) -> dict[tuple[str, int], list[int]]:
    """Token by token: which split and which file. Numbers the tokens 0, 1, 2 ..."""
    starts = np.concatenate(([0], np.cumsum(documents)))[:-1].tolist() if documents else []
    total = sum(documents)
    border = 0
    if len(cut.splits) == 2:
        if cut.val.kind == "docs":
            n = cut.val.amount
            border = starts[n] if n < len(starts) else total
        elif cut.val.kind == "tokens":
            border = next((s for s in starts if s >= cut.val.amount), total)
        elif cut.by_document:
            border = next((s for s in starts if s >= cut.shard_tokens), total)
        else:
            border = min(total, cut.shard_tokens)
    files: dict[tuple[str, int], list[int]] = {}
    for document, (start, length) in enumerate(zip(starts, documents, strict=True)):
        for token in range(start, start + length):
            split = "val" if token < border else "train"
            origin = 0 if split == "val" else border
            anchor = starts[document] if cut.by_document else token
            number = (anchor - origin) // cut.shard_tokens if cut.shard_tokens else 0
            files.setdefault((split, number), []).append(token)
    return files


@given(
    st.lists(lengths, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from(["none", "docs:1", "docs:7", "tokens:1", "tokens:55", "shard"]),
    st.sampled_from([0, 1, 13, 64, 1000]),
    st.booleans(),
)
def test_units_laid_out_one_by_one_fill_the_files_as_the_obvious_way_does(
    units: list[list[int]], cuts: list[bool], val: str, shard: int, by_document: bool
) -> None:
    """Units of whole documents, and where `cuts` says so of documents that go on in the next."""
    if val == "shard" and not shard:
        shard = 50
    cut = rule(val, shard, by_document)
    state = StreamState()
    files: dict[tuple[str, int], list[int]] = {}
    documents: list[int] = []
    continued = False
    for number, unit in enumerate(units):
        later = units[number + 1] if number + 1 < len(units) else [0]
        open_ = cuts[number] and bool(unit and unit[-1] and later and later[0])
        tokens = int(sum(unit))
        packed = PackedStream(
            np.zeros(tokens, np.uint16), np.array(unit, np.int64), np.arange(len(unit)),
            continued, open_,
        )  # fmt: skip
        counts, starts = StreamCounts.of(packed), packed.starts()
        if continued:
            documents[-1] += unit[0]
        documents += unit[int(continued) :]
        continued = open_
        pieces, after = cut.lay_out(state, counts, starts)
        with contextlib.suppress(NeedStarts):  # without the starts: the same answer, or none
            assert cut.lay_out(state, counts, None) == (pieces, after)
        covered = 0
        for piece in pieces:
            assert piece.start == covered
            covered = piece.stop
            file = files.setdefault((piece.split, piece.file), [])
            assert piece.at == len(file), "a piece begins where its file ends"
            file.extend(range(state.tokens + piece.start, state.tokens + piece.stop))
        assert covered == tokens
        assert (after.tokens, after.documents) == (
            state.tokens + tokens,
            state.documents + len(unit) - open_,
        )
        state = after
    assert files == naive(documents, cut)


@given(lengths, st.sampled_from(["append", "prepend", "none"]))
def test_separators_stand_before_or_after_every_document(documents: list[int], eot: str) -> None:
    settings_ = plan_settings(Options(eot=eot), "out")
    ids = np.arange(sum(documents), dtype=np.uint32)
    offsets = np.concatenate(([0], np.cumsum(documents))).astype(np.int64)
    tokens, lengths_ = add_separators(ids, offsets, np.diff(offsets), settings_, settings_.first)
    expected: list[int] = []
    for start, stop in itertools.pairwise(offsets):
        body = ids[start:stop].tolist()
        expected += {"append": [*body, 50256], "prepend": [50256, *body], "none": body}[eot]
    assert tokens.tolist() == expected
    assert int(lengths_.sum()) == len(expected)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=30))
def test_partition_keeps_every_document_whole_and_in_order(
    documents: list[tuple[int, bool]],
) -> None:
    sizes = np.array([n for n, _ in documents], np.int64)
    held = np.array([h for _, h in documents])
    tokens = np.arange(sizes.sum(), dtype=np.uint16)
    train, val = partition(PackedStream(tokens, sizes, np.arange(len(sizes))), held)
    pieces = np.split(tokens, np.cumsum(sizes)[:-1])
    for side, keep in ((train, ~held), (val, held)):
        expected = [t for piece, k in zip(pieces, keep, strict=True) if k for t in piece.tolist()]
        assert side.tokens.tolist() == expected
        assert side.rows.tolist() == np.flatnonzero(keep).tolist()


def test_the_hash_of_a_position_never_changes() -> None:
    """These values decide which documents are held out: they are part of the format."""
    values = document_hash(0, 0, np.array([0, 1, 2, 10**12], np.int64))
    assert [hex(int(v)) for v in values] == EXPECTED_HASHES
    assert document_hash(1, 0, np.array([0])) != values[0]
    assert document_hash(0, 1, np.array([0])) != values[0]


def test_the_hashed_share_is_the_share_asked_for() -> None:
    hashes = document_hash(0, 3, np.arange(2_000_000, dtype=np.int64))
    share = float((hashes < np.uint64(Val.parse("0.01").threshold)).mean())
    assert abs(share - 0.01) < 0.0005


def test_an_id_outside_the_vocabulary_is_never_narrowed() -> None:
    import pytest

    from tokenmill.errors import EncoderError

    packer = Packer(SETTINGS, Source(number=0, name="x", kind="jsonl", size=0, fingerprint=""))
    one = np.array([0], np.int64)
    with pytest.raises(EncoderError, match="outside the vocabulary"):
        packer.add(np.array([70000], np.uint32), np.array([0, 1], np.int64), one, one)
