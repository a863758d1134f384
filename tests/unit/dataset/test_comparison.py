"""`verify --deep` as arithmetic: rows and tokens in memory, each kind of damage named by its place.

The encoder here gives each byte as its own id, so that every expected id can be read off the text.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tokenmill.dataset.deep.comparison import (
    BatchComparison,
    ComparedCounts,
    TaskChoice,
    with_separator,
)
from tokenmill.dataset.deep.origins import Problem, SegmentTask, read_tasks
from tokenmill.dataset.deep.row_problems import quarantine_problems
from tokenmill.dataset.deep.verification import SAMPLE_STRIDE, in_passes, spread_evenly
from tokenmill.dataset.streams import Stream
from tokenmill.errors import UsageError, VerificationError
from tokenmill.inputs.batch import BadRow, Batch
from tokenmill.inputs.segments import cut_rule
from tokenmill.inputs.source import Source
from tokenmill.output.manifest import Manifest, SplitEntry
from tokenmill.settings import Eot, Layout, PlanSettings, Val
from tokenmill.system.store import FolderStore
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.encoders.decoding import Decoder
from tokenmill.tokens.splits import document_hash

EOT = 0
TEXTS = [b"one", b"twenty", b"", b"four", b"fifty"]
DECODER = Decoder({i: bytes([i]) for i in range(1, 256)}, {EOT: "<end>"})
SOURCE = Source(number=0, name="a.jsonl", path="", kind="jsonl", size=0, fingerprint="", mtime_ns=0)


def settings(eot: Eot = "append", **changes: Any) -> PlanSettings:
    layout = Layout(format="nanogpt", dtype="uint16", eot=eot, cut="exact", shard_tokens=0, name="")
    plain = PlanSettings(
        text_column="text",
        tokenizer="bytes",
        tokenizer_sha256="",
        eot_id=EOT,
        vocab_size=256,
        layouts=(layout,),
        val=Val(kind="none"),
        seed=3,
        drop_empty=False,
    )
    return msgspec.structs.replace(plain, **changes)


def encode(document: bytes) -> np.ndarray:
    return np.frombuffer(document, np.uint8).astype(np.uint32)


class MemoryStream(Stream):
    """A stream that holds its documents in memory, each with the row it comes from."""

    def __init__(
        self,
        documents: list[tuple[int, list[int]]],
        name: str = "train",
        val: int = 0,
        shuffled: bool = False,
    ) -> None:
        """`val`: so many documents at the beginning are the validation split."""
        self.name, self.shuffled, self.source_names = name, shuffled, [SOURCE.name]
        self.stored = np.array([i for _, ids in documents for i in ids], np.uint16)
        self.ends = np.cumsum([len(ids) for _, ids in documents], dtype=np.uint64)
        self.runs = np.array([[i, 0, row] for i, (row, _) in enumerate(documents)], np.uint64)
        self.runs = self.runs.reshape(-1, 3)
        self.rows = np.argsort(self.runs[:, 2], kind="stable").astype(np.uint64)
        self.documents, self.tokens = len(documents), len(self.stored)
        border = int(self.ends[val - 1]) if val else 0
        parts = [("val", 0, border)] if val else []
        parts.append((name if name != "all" else "train", border, self.tokens - border))
        self.splits = [
            SplitEntry(
                name=split, format="", stream=name, first_token=first, tokens=tokens, documents=0
            )
            for split, first, tokens in parts
        ]

    def _index(self, kind: str) -> Any:
        return {"ends": self.ends, "runs": self.runs.reshape(-1), "rows": self.rows}[kind]

    def _block(self, kind: str, first: int, stop: int) -> Any:
        return self._index(kind)[first:stop].astype(np.int64)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.stored[start:stop]


def stored_texts(texts: list[bytes] = TEXTS) -> list[tuple[int, list[int]]]:
    """Documents as a healthy stream holds them, rows counted from 0."""
    return [(row, [*text, EOT]) for row, text in enumerate(texts)]


def batch_of(texts: list[bytes] = TEXTS, first: int = 0, bad: tuple[int, ...] = ()) -> Batch:
    """A batch of rows `first` and following, of which those in `bad` are not text."""
    count = len(texts) + len(bad)
    rows = np.array([r for r in range(first, first + count) if r not in bad], np.int64)
    wrong = [BadRow(row, -1, "not text", b"?") for row in bad]
    return Batch(from_bytes(texts), rows, rows, wrong, first, count, 0)


def compare(
    streams: list[MemoryStream],
    batch: Batch | None = None,
    counts: ComparedCounts | None = None,
    **changes: Any,
) -> list[Problem]:
    batch = batch or batch_of()
    comparison = BatchComparison(settings(**changes), list(streams), encode, DECODER)
    chosen = np.ones(len(batch.rows), bool)
    return list(comparison.problems(SOURCE, batch, chosen, counts or ComparedCounts()))


def shuffled_texts() -> list[tuple[int, list[int]]]:
    return [stored_texts()[i] for i in (3, 0, 4, 2, 1)]


# --- what is right ---------------------------------------------------------------------------


def test_a_stream_as_it_should_be_has_no_problem_and_its_counts_come_out() -> None:
    counts = ComparedCounts()
    assert compare([MemoryStream(stored_texts())], counts=counts) == []
    assert (counts.rows, counts.documents, counts.empty, counts.dropped) == (5, 5, 1, 0)
    assert counts.text_bytes == counts.compared_bytes == sum(map(len, TEXTS))
    assert counts.tokens == sum(map(len, TEXTS)) + 5


def test_documents_that_are_not_chosen_are_not_compared_but_must_be_in_their_rows() -> None:
    damaged = stored_texts()
    damaged[1] = (1, [*b"tw?nty", EOT])
    comparison = BatchComparison(settings(), [MemoryStream(damaged)], encode, DECODER)
    counts = ComparedCounts()
    chosen = np.array([True, False, True, True, True])
    assert list(comparison.problems(SOURCE, batch_of(), chosen, counts)) == []
    assert counts.documents == 4
    missing = MemoryStream(stored_texts()[:1] + stored_texts()[2:])
    comparison = BatchComparison(settings(), [missing], encode, DECODER)
    problems = list(comparison.problems(SOURCE, batch_of(), chosen, counts))
    assert [(p.kind, p.row) for p in problems] == [("row", 1)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eot": "append"}, [97, 98, 0]),
        ({"eot": "prepend"}, [0, 97, 98]),
        ({"eot": "none"}, [97, 98]),
        ({"eot": "append", "bos_id": 7}, [7, 97, 98, 0]),
        ({"eot": "prepend", "bos_id": 7}, [0, 7, 97, 98]),
    ],
)
def test_separators_are_where_the_settings_put_them(
    changes: dict[str, Any], expected: list[int]
) -> None:
    assert with_separator(encode(b"ab"), settings(**changes)).tolist() == expected


def test_a_document_that_is_dropped_for_its_length_is_not_missed() -> None:
    counts = ComparedCounts()
    kept = [one for one in stored_texts() if len(one[1]) in (4, 5)]  # texts of 3 and 4 tokens
    limits = {"drop_empty": True, "min_tokens": 2, "max_tokens": 4}
    assert compare([MemoryStream(kept)], counts=counts, **limits) == []
    assert (counts.documents, counts.dropped, counts.empty) == (2, 3, 1)
    assert [p.row for p in compare([MemoryStream(kept[:1])], **limits)] == [3]


# --- what is wrong ---------------------------------------------------------------------------


def test_a_wrong_token_is_named_with_its_place() -> None:
    damaged = stored_texts()
    damaged[3] = (3, [*b"fo_r", EOT])
    (problem,) = compare([MemoryStream(damaged)])
    assert problem == Problem(
        kind="token",
        source="a.jsonl",
        row=3,
        split="train",
        document=3,
        token=2,
        expected=ord("u"),
        found=ord("_"),
        message="train document 3 (a.jsonl, row 3): token 2 (token 14 of train) is 95 '_', "
        "the reference says 117 'u'",
    )


def test_the_place_is_counted_in_the_split_as_inspect_counts() -> None:
    damaged = stored_texts()
    damaged[4] = (4, [*b"fiftz", EOT])
    (problem,) = compare([MemoryStream(damaged, "all", val=2)], val=Val(kind="docs", amount=2))
    assert (problem.split, problem.document, problem.token) == ("train", 2, 4)
    assert "(token 10 of train)" in problem.message  # 0 + 1 of "", 4 + 1 of "four", 4 of "fifty"
    damaged = stored_texts()
    damaged[1] = (1, [*b"Twenty", EOT])
    (problem,) = compare([MemoryStream(damaged, "all", val=2)], val=Val(kind="docs", amount=2))
    assert (problem.split, problem.document, problem.row) == ("val", 1, 1)


def test_a_missing_document_is_named_by_its_row() -> None:
    (problem,) = compare([MemoryStream(stored_texts()[:3] + stored_texts()[4:])])
    assert (problem.kind, problem.row, problem.document) == ("row", 3, -1)
    assert problem.message == "a.jsonl: row 3 should be a document of train, and is not there"


def test_swapped_documents_are_both_named() -> None:
    damaged = stored_texts()
    damaged[0], damaged[1] = (0, damaged[1][1]), (1, damaged[0][1])
    problems = compare([MemoryStream(damaged)])
    assert [(p.kind, p.row, p.document, p.token) for p in problems] == [
        ("token", 0, 0, 0),
        ("token", 1, 1, 0),
    ]


def test_a_wrong_end_is_found_in_both_documents_that_it_parts() -> None:
    stream = MemoryStream(stored_texts())
    stream.ends[0] += np.uint64(1)  # "one" and its separator, and the first token of "twenty"
    first, second = compare([stream])
    assert first.message.endswith("train document 0 (a.jsonl, row 0): has 5 tokens, the reference "
                                  "says 4")  # fmt: skip
    assert (first.token, first.expected, first.found) == (4, -1, ord("t"))
    assert (second.document, second.token, second.found) == (1, 0, ord("w"))


@pytest.mark.parametrize(("more", "tokens"), [([7, 8], 6), ([], 3)])
def test_extra_and_lost_tokens_are_counted(more: list[int], tokens: int) -> None:
    damaged = stored_texts()
    damaged[0] = (0, [*b"one", EOT, *more][:tokens])
    (problem,) = compare([MemoryStream(damaged)])
    assert problem.message == (
        f"train document 0 (a.jsonl, row 0): has {tokens} tokens, the reference says 4"
    )
    assert problem.token == min(tokens, 4)


def test_a_document_of_a_row_that_is_not_text_is_extra() -> None:
    (problem,) = compare([MemoryStream(stored_texts())], batch_of(TEXTS[:2] + TEXTS[3:], bad=(2,)))
    assert (problem.kind, problem.row, problem.split, problem.document) == ("row", 2, "train", 2)
    assert problem.message == (
        "train document 2: comes from a.jsonl, row 2, says the index; that row is not a document "
        "of train"
    )


def test_a_document_in_the_wrong_split_is_missed_in_one_and_extra_in_the_other() -> None:
    rule = Val(kind="fraction", fraction="0.5")
    many = [b"text %d" % i for i in range(40)]
    hashes = document_hash(3, SOURCE.number, np.arange(40))
    in_val = hashes < np.uint64(rule.threshold)
    assert 5 < in_val.sum() < 35
    every = stored_texts(many)
    streams = [
        [one for one, val in zip(every, in_val, strict=True) if val == wanted]
        for wanted in (False, True)
    ]
    train, val = streams
    assert compare([MemoryStream(train), MemoryStream(val, "val")], batch_of(many), val=rule) == []
    moved = val.pop(2)
    train = sorted([*train, moved])
    number = train.index(moved)
    extra, missing = compare([MemoryStream(train), MemoryStream(val, "val")], batch_of(many),
                             val=rule)  # fmt: skip
    assert (extra.split, extra.document, extra.row) == ("train", number, moved[0])
    assert "not a document of train" in extra.message
    assert missing.message == (
        f"a.jsonl: row {moved[0]} should be a document of val, and is not there"
    )


def test_rows_of_a_later_batch_are_compared_with_the_documents_behind_it() -> None:
    damaged = stored_texts()
    damaged[4] = (4, [*b"fift!", EOT])
    stream = MemoryStream(damaged)
    assert compare([stream], batch_of(TEXTS[:3])) == []
    (problem,) = compare([stream], batch_of(TEXTS[3:], first=3))
    assert (problem.row, problem.document, problem.token) == (4, 4, 4)


def test_quarantined_rows_are_those_that_are_not_text() -> None:
    batch = batch_of(TEXTS[:3], first=10, bad=(11, 14))
    assert list(quarantine_problems("a", batch, np.array([3, 11, 14, 15]))) == []
    (problem,) = quarantine_problems("a", batch, np.array([11]))
    assert (problem.kind, problem.row) == ("quarantine", 14)
    assert problem.message == "a: row 14 is not text, but quarantine.jsonl does not name it"
    (problem,) = quarantine_problems("a", batch, np.array([11, 12, 14]))
    assert problem.message == "a: row 12 is named by quarantine.jsonl, but can be read"


# --- which documents are read ----------------------------------------------------------------


def test_two_passes_choose_every_row_once() -> None:
    tasks = [SegmentTask(0, 0, 0, 100), SegmentTask(0, 1, 100, 50), SegmentTask(1, 0, 0, 200)]
    works = list(in_passes(tasks))
    assert {work.task for work in works[:3]} == {work.task for work in works[3:]} == set(tasks)
    for task in tasks:
        first, second = (work for work in works if work.task == task)
        rows = np.arange(task.first_row, task.first_row + task.rows)
        assert (first.choice(rows) ^ second.choice(rows)).all()
        assert abs(first.choice(rows).sum() - task.rows / SAMPLE_STRIDE) < 1


@pytest.mark.parametrize("count", [1, 7, 50])
def test_a_sample_is_spread_evenly_and_grouped_by_segment(count: int) -> None:
    train = MemoryStream([(row, [1]) for row in range(0, 100, 2)])
    val = MemoryStream([(row, [1]) for row in range(1, 100, 2)], "val")
    tasks = [SegmentTask(0, segment, first, 10) for segment, first in enumerate(range(0, 100, 10))]
    works: list[TaskChoice] = list(spread_evenly(tasks, [train, val], count))
    chosen: list[int] = []
    for work in works:
        rows = np.arange(work.task.first_row, work.task.first_row + work.task.rows)
        mine = rows[work.choice(rows)]
        assert work.stop_row == mine[-1] + 1
        chosen += mine.tolist()
    assert len(chosen) == len(set(chosen)) == count
    if count == 50:
        numbers = sorted(row // 2 + (50 if row % 2 else 0) for row in chosen)
        assert {b - a for a, b in pairwise(numbers)} == {2}


def _manifest(rows: int, rule: list[int] | None = None) -> Manifest:
    return Manifest(
        version=2,
        fingerprint="",
        plan={"cut_rule": rule or cut_rule()},
        counts={},
        splits=[],
        sources=[{"name": "a", "rows": rows}, {"name": "b", "rows": 4}],
        set_aside=[],
        files=[],
    )


@pytest.mark.parametrize(
    ("units", "rows", "said"),
    [
        ([(0, 0, 0, 0, 3), (0, 1, 0, 3, 2), (0, 1, 1, 5, 2)], 7, []),
        ([(0, 0, 0, 0, 3), (0, 1, 0, 4, 2)], 3, ["unit 1.0 of a does not follow"]),
        ([(0, 0, 0, 0, 3), (0, 2, 0, 3, 2)], 3, ["unit 2.0 of a does not follow"]),
        ([(0, 0, 0, 0, 3), (0, 1, 0, 3, 2)], 6, ["5 rows of a, the manifest says 6"]),
    ],
)
def test_units_become_segments_or_contradict_themselves(
    tmp_path: Path, units: list[tuple[int, ...]], rows: int, said: list[str]
) -> None:
    (tmp_path / "index").mkdir()
    np.array([*units, (1, 0, 0, 0, 4)], "<u8").tofile(tmp_path / "index/units")
    tasks, problems = read_tasks(FolderStore(tmp_path), _manifest(rows))
    assert tasks[-1] == SegmentTask(1, 0, 0, 4)
    assert len(problems) == len(said)
    assert all(part in p.message for part, p in zip(said, problems, strict=True))
    if not said:
        assert tasks == [SegmentTask(0, 0, 0, 3), SegmentTask(0, 1, 3, 4), SegmentTask(1, 0, 0, 4)]
    with pytest.raises(UsageError, match="cut by another rule"):
        read_tasks(FolderStore(tmp_path), _manifest(rows, [1]))


# --- shuffled --------------------------------------------------------------------------------


def test_a_shuffled_stream_has_no_problem_and_its_counts_come_out() -> None:
    counts = ComparedCounts()
    stream = MemoryStream(shuffled_texts(), shuffled=True)
    assert list(stream.faults()) == []
    assert compare([stream], counts=counts) == []
    assert (counts.rows, counts.documents, counts.tokens) == (5, 5, sum(map(len, TEXTS)) + 5)


@pytest.mark.parametrize("at", range(5))
def test_a_token_of_a_shuffled_stream_is_named_by_its_document_and_row(at: int) -> None:
    texts = shuffled_texts()
    row, ids = texts[at]
    texts[at] = row, [ids[0] ^ 1, *ids[1:]]
    (problem,) = compare([MemoryStream(texts, shuffled=True)])
    assert (problem.kind, problem.document, problem.row) == ("token", at, row)
    assert (problem.token, problem.found, problem.expected) == (0, ids[0] ^ 1, ids[0])


@pytest.mark.parametrize(("first", "second"), [*combinations(range(5), 2)])
def test_two_documents_of_a_shuffled_stream_that_changed_places_are_found(
    first: int, second: int
) -> None:
    texts = shuffled_texts()
    (row, ids), (other_row, other) = texts[first], texts[second]
    texts[first], texts[second] = (row, other), (other_row, ids)
    problems = compare([MemoryStream(texts, shuffled=True)])
    assert {(p.kind, p.document) for p in problems} == {("token", first), ("token", second)}


@pytest.mark.parametrize("at", range(5))
def test_a_document_that_a_shuffled_stream_lacks_is_found(at: int) -> None:
    texts = shuffled_texts()
    row, _ = texts.pop(at)
    problems = compare([MemoryStream(texts, shuffled=True)])
    assert [(p.kind, p.row) for p in problems] == [("row", row)]


@pytest.mark.parametrize("at", range(5))
def test_a_document_that_a_shuffled_stream_has_twice_is_found(at: int) -> None:
    texts = shuffled_texts()
    with pytest.raises(VerificationError, match="are not in the order of their rows"):
        compare([MemoryStream([*texts, texts[at]], shuffled=True)])


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([1, 4, 3, 0, 9], "rows: names document 9 of 5"),
        ([1, 4, 3, 0], "rows: 4 entries for 5 documents"),
        ([], "rows: 0 entries for 5 documents"),
    ],
)
def test_a_table_of_rows_that_cannot_be_is_a_fault(rows: list[int], fault: str) -> None:
    stream = MemoryStream(shuffled_texts(), shuffled=True)
    stream.rows = np.array(rows, np.uint64)
    assert list(stream.faults()) == [f"index/train.{fault}"]


@pytest.mark.parametrize("wrong", [(4, 1, 3, 0, 2), (1, 4, 3, 2, 0), (1, 1, 3, 0, 2)])
def test_a_table_of_rows_out_of_order_is_found(wrong: tuple[int, ...]) -> None:
    stream = MemoryStream(shuffled_texts(), shuffled=True)
    stream.rows = np.array(wrong, np.uint64)
    assert list(stream.faults()) == []  # each document is there
    with pytest.raises(VerificationError, match="are not in the order of their rows"):
        compare([stream])


def test_runs_of_a_shuffled_stream_are_one_for_each_document() -> None:
    stream = MemoryStream(shuffled_texts(), shuffled=True)
    stream.runs[2, 0] = 3
    assert list(stream.faults()) == ["index/train.runs: documents are not numbered in order"]
    stream.runs[2, :2] = 2, 1
    assert list(stream.faults()) == ["index/train.runs: names a source that is not there"]
