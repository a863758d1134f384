"""Leases: every segment of every source is in exactly one of them, whatever the sizes."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.planning.leases import LEASE_BYTES, Lease, Part, leases_of, segments_in

SIZES = st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30)


def sources_of(sizes: list[tuple[int, bool]]) -> list[Source]:
    return [
        Source(
            number=number, name=f"{number}", kind="jsonl", size=size, fingerprint="",
            compression="gzip" if packed else "",
        )
        for number, (size, packed) in enumerate(sizes)
    ]  # fmt: skip


@given(SIZES, st.integers(1, 3000), st.data())
def test_every_segment_is_in_exactly_one_lease(
    sizes: list[tuple[int, bool]], target: int, data: st.DataObject
) -> None:
    with patch.dict("os.environ", {"TOKENMILL_LEASE_BYTES": str(target)}):
        leases = list(leases_of(sources_of(sizes)))
    assert [lease.number for lease in leases] == list(range(len(leases)))
    for number in range(len(sizes)):
        # How a reader cuts the file has little to do with its size on disk.
        cut = data.draw(st.lists(st.integers(0, 100), max_size=12))
        segments = [Segment(number, n, n, n + 1, size) for n, size in enumerate(cut)]
        mine = [one for one in leases if one.first <= number < one.stop]
        assert [one for lease in mine for one in segments_in(lease, segments)] == segments


@given(SIZES, st.integers(1, 3000))
def test_leases_are_about_as_large_as_they_should_be(
    sizes: list[tuple[int, bool]], target: int
) -> None:
    sources = sources_of(sizes)
    with patch.dict("os.environ", {"TOKENMILL_LEASE_BYTES": str(target)}):
        leases = list(leases_of(sources))
    for lease in leases:
        mine = sources[lease.first : lease.stop]
        size = sum(source.size for source in mine) / lease.of
        assert size < 2 * target or (len(mine) == 1 and mine[0].compression) or len(mine) > 1
        assert sum(source.size for source in mine[:-1]) < target


@given(SIZES, st.integers(1, 40))
def test_every_lease_is_in_exactly_one_part(sizes: list[tuple[int, bool]], of: int) -> None:
    leases = list(leases_of(sources_of(sizes)))
    taken = [lease for number in range(of) for lease in Part(number, of).of_leases(leases)]
    assert sorted(taken, key=lambda lease: lease.number) == leases


def test_a_remote_file_is_never_in_two_leases() -> None:
    """Each of them would download it. `finish` knows the name alone, and gets the same leases."""
    names = ("hf://datasets/a/b/0.parquet", "s3://bucket/1.parquet", "https://host/2.parquet")
    sources = [
        Source(number=n, name=name, kind="parquet", size=5 * LEASE_BYTES, fingerprint="")
        for n, name in enumerate(names)
    ]
    assert list(leases_of(sources)) == [Lease(n, n, n + 1) for n in range(3)]


def test_a_large_file_is_cut_into_fractions_and_small_ones_are_taken_together() -> None:
    gb = LEASE_BYTES
    sizes = [(gb // 4, False)] * 5 + [(3 * gb, False), (3 * gb, True), (5, False)]
    assert list(leases_of(sources_of(sizes))) == [
        Lease(0, 0, 4),
        Lease(1, 4, 5),
        Lease(2, 5, 6, 0, 3),
        Lease(3, 5, 6, 1, 3),
        Lease(4, 5, 6, 2, 3),
        Lease(5, 6, 7),
        Lease(6, 7, 8),
    ]


def test_a_part_takes_its_number_from_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX"):
        Part.parse("auto/8")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "5")
    assert Part.parse("auto/8") == Part(5, 8)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert Part.parse("auto/8") == Part(3, 8)


@pytest.mark.parametrize("text", ["", "3", "3/", "/4", "-1/4", "a/4", "1/0", "1/4/2", "1.5/4"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be I/N"):
        Part.parse(text)


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="16 is not below 16") as error:
        Part.parse("16/16")
    assert "--array=0-15" in error.value.hint
