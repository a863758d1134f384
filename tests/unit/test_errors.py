"""Errors carry their place and their advice wherever they are shown."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from support.inputs import write_parquet

import tokenmill
from tokenmill.errors import (
    EncoderError,
    InputError,
    Interrupted,
    SpecialTokenError,
    StorageError,
    UnknownSplitError,
    UnknownTokenError,
    UsageError,
    from_wire,
)
from tokenmill.inputs.opening import identify
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.tokenizer.encoders.checking import Checker


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_place_is_in_the_message_the_text_and_the_traceback() -> None:
    error = EncoderError("ids differ", hint="use --encoder reference")
    error.located("in the 3 rows at position 7").located("a.parquet")
    assert error.message == "a.parquet: in the 3 rows at position 7: ids differ"
    assert str(error) == f"{error.message}\nhint: use --encoder reference"
    assert f"EncoderError: {error.message}" in shown(error)
    assert from_wire(error.to_wire()).message == error.message


def test_a_place_may_take_the_place_of_another_name() -> None:
    error = InputError("/cache/x/a.parquet: not a parquet file")
    assert str(error.located("hf://a.parquet", instead_of="/cache/x/a.parquet")) == (
        "hf://a.parquet: not a parquet file"
    )


def test_a_place_is_safe_for_a_terminal() -> None:
    assert "\x1b" not in str(EncoderError("x").located("a\x1b[31m.parquet"))


def test_new_advice_replaces_the_old_one_everywhere() -> None:
    error = StorageError("no space", hint="old").advised("set XDG_CACHE_HOME")
    assert error.hint == "set XDG_CACHE_HOME"
    assert "hint: set XDG_CACHE_HOME" in shown(error)
    assert "old" not in shown(error)


def test_a_traceback_of_a_run_without_workers_names_file_and_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(*_: object) -> None:
        raise EncoderError("the encoders differ")

    monkeypatch.setattr(Checker, "check", differs)
    source = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    with pytest.raises(EncoderError) as caught:
        tokenmill.prepare(source, tmp_path / "o", val="none", workers=0)
    told = "a.parquet: in the 2 rows at position 0: the encoders differ"
    assert str(caught.value) == told
    assert told in shown(caught.value)


def test_a_downloaded_file_that_is_wrong_is_known_by_its_address(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"not parquet at all")
    source = Source(
        number=0, name="s3://bucket/a.parquet", path="", kind="parquet", size=18,
        fingerprint="etag:x", mtime_ns=0,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"^s3://bucket/a\.parquet: ") as caught:
        identify.at_hand(source, str(path), Reading("text"))
    assert str(tmp_path) not in str(caught.value)


def test_the_hint_is_in_the_text_of_every_kind_of_error_and_once_in_a_traceback() -> None:
    for kind in (UsageError, UnknownTokenError, UnknownSplitError, SpecialTokenError, Interrupted):
        error = kind("the message", hint="what to do")
        assert str(error) == "the message\nhint: what to do"
        assert shown(error).count("what to do") == 1
        assert str(kind("the message")) == "the message"
