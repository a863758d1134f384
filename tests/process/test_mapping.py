"""`tok.map` under datasets, Arrow, multiprocessing and Ray: shapes, caching, nulls, examples."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
from support.cases import quick
from support.inputs import ROOT, SAMPLES, sample_texts
from support.mapping import (
    EOT,
    counts,
    expected,
    run_example,
    tok,  # noqa: F401
)

from tokenmill import Tokenizer
from tokenmill.errors import BadRowError


@pytest.mark.parametrize("processes", [None, 2])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("form", quick([None, "arrow", "numpy", "pandas"], first=2))
def test_datasets_map_gives_the_references_ids(
    processes: int | None, batched: bool, form: str | None, tok: Tokenizer
) -> None:
    texts = sample_texts()[:60]
    ds = datasets.Dataset.from_dict({"text": texts}).with_format(form)
    done = ds.map(tok.map, batched=batched, num_proc=processes, remove_columns=["text"])
    done = done.with_format(None)
    assert done["ids"][:] == [[*ids, EOT] for ids in expected(texts)]
    assert done["len"][:] == [len(ids) + 1 for ids in expected(texts)]
    assert done.column_names == ["ids", "len"]
    assert done.features["ids"].feature.dtype == "uint16"  # not int64: a quarter of the disk


def test_an_error_in_a_worker_of_datasets_arrives_whole(tok: Tokenizer) -> None:
    ds = datasets.Dataset.from_dict({"text": [*["word"] * 40, None]})
    with pytest.raises(BadRowError, match="null in row") as caught:
        ds.map(tok.map, batched=True, num_proc=2)
    assert "nulls=" in caught.value.hint


@pytest.mark.long
def test_the_example_for_datasets(tmp_path: Path) -> None:
    found = run_example("datasets_map.py", str(ROOT / "sample" / "*.parquet"), folder=tmp_path)
    assert found == f"{counts(SAMPLES)}, the first ends with {EOT}"
