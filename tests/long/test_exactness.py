"""Ids equal those of the reference, for every input and every way to run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.commands import dataset_bytes
from support.exactness import (
    FAST,
    references,  # noqa: F401
)
from support.find_gap import find_gap
from support.inputs import SHARED, write_parquet

import tokenmill
from reliability import r10_right_tokens
from tokenmill.tokenizer.bundled import ENCODINGS, get_encoding
from tokenmill.tokenizer.proof.gap_tables import GAP

RANGES = ((0x20, 0x250), (0x250, 0xD800), (0xE000, 0x33500))


@pytest.mark.parametrize(
    ("name", "context"), list(zip(FAST, r10_right_tokens.CONTEXTS, strict=True))
)
def test_all_code_points_in_a_context(name: str, context: str) -> None:
    """One context for each encoding; the scorecard's R10, whose code this is, has all of them."""
    for block in range(0x110000 // r10_right_tokens.PER_POINTS_CASE):
        r10_right_tokens.code_points(name, context, block, step=1)


def test_the_table_of_differing_code_points_is_that_of_the_installed_versions() -> None:
    """Recomputed for one encoding: the rest is covered by the test of all code points."""
    assert find_gap(get_encoding("o200k_base")) == GAP


@pytest.mark.skipif(not SHARED.exists(), reason="the shared corpus is not on this machine")
@pytest.mark.parametrize("name", FAST)
def test_the_whole_shared_corpus_equals_the_reference(
    name: str, tmp_path: Path, references: dict[str, object]
) -> None:
    """The reference in two threads, file by file; ours in one go with 0 to 3 workers.

    Every fifth document and two ways to run; all with TOKENMILL_WHOLE_CORPUS=1.
    """
    import pyarrow.parquet

    paths = sorted((SHARED / "corpus").glob("*.parquet"))
    runs = [(0, "fork"), (1, "fork"), (2, "spawn"), (3, "forkserver")]
    if not os.environ.get("TOKENMILL_WHOLE_CORPUS"):
        runs = [runs[0], runs[1 + FAST.index(name) % 3]]
        tables = [(path, pyarrow.parquet.read_table(path, columns=["text"])) for path in paths]
        paths = [
            write_parquet(tmp_path / path.name, table.column(0).to_pylist()[::5], rows=1000)
            for path, table in tables
        ]
    for number, (workers, method) in enumerate(runs):
        tokenmill.prepare(
            paths, tmp_path / str(number), tokenizer=name, val="none", workers=workers,
            start_method=method, memory="3GB",
        )  # fmt: skip
    outputs = [dataset_bytes(tmp_path / str(i)) for i in range(len(runs))]
    assert all(output == outputs[0] for output in outputs)
    train = tokenmill.open_dataset(tmp_path / "0")["train"]
    document = 0
    for path in paths:
        column = pyarrow.parquet.read_table(path, columns=["text"]).column(0).to_pylist()
        expected = references[name].encode_ordinary_batch(column, num_threads=2)  # type: ignore[attr-defined]
        for ids in expected:
            got = train.documents[document]
            assert got[-1] == ENCODINGS[name].eot_id
            assert np.array_equal(got[:-1], ids), (path.name, document)
            document += 1
    assert document == len(train.documents)
