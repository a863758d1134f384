"""Shared data for the tests: real text from the bundled sample, in every input format."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import settings
from support.inputs import sample_texts, write_arrow, write_jsonl, write_parquet

from tokenmill.tokenizer import bundled
from tokenmill.tokenizer.families.tiktoken import TiktokenFamily

# HYPOTHESIS_PROFILE=all, as `make test-all` sets it, tries more.
settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("all", max_examples=400, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# No test asks the network for credentials: whether this machine is one of a cloud does not matter.
os.environ.update(AWS_EC2_METADATA_DISABLED="true", NO_GCE_CHECK="true")


@pytest.fixture(scope="session", autouse=True)
def bundled_ranks_are_read_once() -> Iterator[None]:
    """A command opens one tokenizer; this process opens a thousand, at a fifth of a second."""
    unpacked: dict[str, dict[bytes, int]] = {}
    unpack = bundled._unchecked_ranks

    def ranks(encoding: bundled.Encoding) -> dict[bytes, int]:
        if encoding.name not in unpacked:
            unpacked[encoding.name] = unpack(encoding)
        return dict(unpacked[encoding.name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "_unchecked_ranks", ranks)
        patch.setattr(bundled, "bundled_ranks_file", functools.cache(bundled.bundled_ranks_file))
        yield


@pytest.fixture(scope="session", autouse=True)
def bundled_fast_encoders_are_opened_once() -> Iterator[None]:
    """A third of a small job in this process is to open the encoder. What it knows of words it may
    keep: the ids do not depend on it."""
    opened: dict[str, Any] = {}
    open_fast = TiktokenFamily.open_fast

    def kept(family: TiktokenFamily, encoding: bundled.Encoding, content: bytes) -> Any:
        if encoding.path:
            return open_fast(family, encoding, content)
        if encoding.name not in opened:
            opened[encoding.name] = open_fast(family, encoding, content)
        return opened[encoding.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TiktokenFamily, "open_fast", kept)
        yield


@pytest.fixture(scope="session", autouse=True)
def small_data_may_leave_a_split_empty() -> Iterator[None]:
    """A few documents have a hashed validation split by chance. Tests of empty splits take this
    back (`tests/unit/tokens/test_tail.py`); a command in a process of its own says what it allows.
    """
    from tokenmill import pipeline

    make_options = pipeline.make_options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pipeline, "make_options", lambda o: make_options({**o, "allow_empty_split": True})
        )
        yield


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return sample_texts()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> list[Path]:
    """Parquet, JSON lines and Arrow of several kinds, some 5 MB of text together."""
    folder = tmp_path_factory.mktemp("inputs")
    return [
        write_parquet(folder / "a.parquet", texts, compression="zstd", write_page_checksum=True),
        write_jsonl(folder / "b.jsonl", texts[::-1]),
        write_jsonl(folder / "c.jsonl.gz", texts[:90]),
        write_parquet(folder / "d.parquet", texts[5:60], kind=pyarrow.large_string()),
        write_jsonl(folder / "e.jsonl.zst", texts[40:130]),
        write_arrow(folder / "f.arrow", texts[::2], rows=33),
        write_arrow(folder / "g.arrow", texts[7:90], form="file", compression="zstd"),
    ]


@pytest.fixture(scope="session")
def large_inputs(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> list[Path]:
    """Enough text for half a dozen units: what is killed and resumed needs something to lose."""
    folder = tmp_path_factory.mktemp("large")
    many = [text for _ in range(40) for text in texts]
    return [
        write_parquet(folder / "a.parquet", many, rows=200, compression="snappy"),
        write_jsonl(folder / "b.jsonl", many[: len(many) * 2 // 3]),
        write_jsonl(folder / "c.jsonl.gz", many[: len(many) // 2]),
        write_arrow(folder / "d.arrow", many[: len(many) // 2], rows=100),
    ]
