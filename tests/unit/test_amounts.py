"""Counts and sizes, as they are shown and as they are read back."""

from __future__ import annotations

import pytest

from tokenmill.amounts import parse_bytes, show_bytes, show_count, show_duration, show_speed


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"),
        (28_520_000_000, "28.5 GB"), (5e12, "5.0 TB"), (-1, "?"),
    ],
)  # fmt: skip
def test_sizes(size: float, shown: str) -> None:
    assert show_bytes(size) == shown


@pytest.mark.parametrize(("number", "shown"), [(7, "7"), (1234, "1.23k"), (1_234_567, "1.23M")])
def test_counts(number: int, shown: str) -> None:
    assert show_count(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(59.9, "59.9 s"), (63.2, "1:03 min"), (3723, "1:02:03")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown


def test_speeds_are_always_in_megabytes() -> None:
    assert [*map(show_speed, (3e5, 12e6, 3e9))] == ["0.3 MB/s", "12 MB/s", "3,000 MB/s"]


@pytest.mark.parametrize("size", [1000, 2_000_000, 3_000_000_000])
def test_a_round_size_is_read_back(size: int) -> None:
    assert parse_bytes(show_bytes(size).replace(" ", "")) == size
