"""`distinct` and `are_among` against numpy's own; and that workers do without numpy.ma."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.texts import are_among, distinct

NUMBERS = st.lists(st.integers(0, 300))


@given(NUMBERS, st.sampled_from(["uint16", "int64"]))
def test_distinct_is_unique(numbers: list[int], dtype: str) -> None:
    given_numbers = np.array(numbers, dtype)
    found = distinct(given_numbers)
    assert found.dtype == given_numbers.dtype
    assert found.tolist() == sorted(set(numbers))


@given(NUMBERS, st.lists(st.integers(0, 300), min_size=1))
def test_are_among_is_isin(numbers: list[int], others: list[int]) -> None:
    found = are_among(np.array(numbers, np.int64), np.sort(others))
    assert found.tolist() == [number in others for number in numbers]


def test_encoding_and_checking_need_no_module_that_numpy_loads_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """numpy.ma takes 10 ms of every worker's start."""
    from tokenmill.texts import from_bytes
    from tokenmill.tokenizer.bundled import get_encoding
    from tokenmill.tokenizer.encoders.checking import Checker
    from tokenmill.tokenizer.encoders.exact import ExactEncoder

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this imports numpy.ma: use tokenmill.texts.distinct or are_among")

    for name in ("unique", "isin", "setdiff1d", "intersect1d", "union1d"):
        monkeypatch.setattr(np, name, refuse)
    encoder = ExactEncoder(get_encoding("gpt2"), "auto")
    texts = from_bytes(
        [b"two words", "\u3000wide \u4e16\u754c".encode(), b"", b" x\n", b"<|endoftext|>"]
    )
    ids, offsets = encoder.encode(texts)
    Checker(encoder, "sample").check(texts, ids, offsets, 0)
    assert encoder.stats.checked_documents > 0
