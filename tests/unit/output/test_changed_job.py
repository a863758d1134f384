"""An output bound to its plan: what was once taken for the same job, or shown badly."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inputs import write_jsonl

import tokenmill
from reliability.r14_changed_job import Job, flip, unfinished
from tokenmill.errors import RefusedError
from tokenmill.inputs.opening.identify import FINGERPRINT_BLOCK
from tokenmill.planning.plan import difference


def test_a_letter_changed_between_the_samples_with_size_and_time_kept_is_refused(
    tmp_path: Path,
) -> None:
    """The time of the last change and the inode tell: the units are made again and compared."""
    job = Job(tmp_path, large=True)
    unfinished(job)
    path = job.paths[1]
    before = path.stat()
    flip(path, FINGERPRINT_BLOCK + 500)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(RefusedError, match=path.name):
        tokenmill.prepare(job.paths, job.output, **job.options())


def test_a_separator_of_line_ends_is_shown_as_escapes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo")
    tokenmill.prepare(path, tmp_path / "o", workers=0)
    with pytest.raises(RefusedError) as refused:
        tokenmill.prepare(path, tmp_path / "o", workers=0, text_separator="\n\n")
    assert r"text_separator: not set -> '\n\n'" in refused.value.message


def test_changed_inputs_are_listed_in_their_order(tmp_path: Path) -> None:
    """Not in the order of a set, which is another one in every process."""
    plans = []
    for size in (1, 2):
        sources = [{"name": f"{i}.jsonl", "size": size, "fingerprint": ""} for i in range(8)]
        plans.append({"settings": {}, "sources": sources})
    assert [line.split(":")[0] for line in difference(*plans)] == [f"{i}.jsonl" for i in range(8)]


def test_an_old_plan_is_still_compared_after_the_inputs_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = write_jsonl(tmp_path / "a" / "x.jsonl", ["one", "two"])
    tokenmill.prepare(path, tmp_path / "o", workers=0)
    (tmp_path / "b").mkdir()
    moved = path.rename(tmp_path / "b" / "x.jsonl")
    assert tokenmill.prepare(moved, tmp_path / "o", workers=0).already_done


def test_a_difference_is_told_value_by_value_and_never_as_a_raw_dict() -> None:
    def plan(**parts: object) -> dict[str, object]:
        return {"settings": {}, "sources": [], **parts}

    mix = {"a.jsonl": {"tokens": 100, "epochs": 1}, "b.jsonl": {"tokens": 5}}
    other = {"a.jsonl": {"tokens": 200, "epochs": 1}, "c.jsonl": {"tokens": 5}}
    assert difference(plan(mix=mix), plan(mix=other)) == [
        "mix, a.jsonl, tokens: 100 -> 200",
        "mix, b.jsonl: tokens 5 -> not set",
        "mix, c.jsonl: not set -> tokens 5",
    ]
    more = [{"format": "megatron", "shard_tokens": size, "eot": "append"} for size in (0, 7)]
    lines = difference(*(plan(settings={"more": [layout]}) for layout in more))
    assert lines == ["more, megatron, shard_tokens: 0 -> 7"]
    lines = difference(plan(settings={"more": []}), plan(settings={"more": more[:1]}))
    assert lines == ["more: none -> megatron"]
    exported = [{"exported_from": {"manifest": name}} for name in "ab"]
    lines = difference(*(plan(**one) for one in exported))
    assert lines == ["exported_from, manifest: a -> b"]
