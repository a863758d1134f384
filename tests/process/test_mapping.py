"""`tok.map` under datasets, Arrow, multiprocessing and Ray: shapes, caching, nulls, examples."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest
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
@pytest.mark.parametrize("form", [None, "arrow", "numpy", "pandas"])
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


MAP_ONCE = """
import sys, datasets
from tokenmill.tokenizer import tokenizer as portable
from tokenmill import Tokenizer
runs = []
original = portable.Tokenizer.encode_texts
portable.Tokenizer.encode_texts = lambda self, texts: runs.append(1) or original(self, texts)
source = sys.argv[2]
if sys.argv[3] == "object":
    import tokenizers
    source = tokenizers.Tokenizer.from_file(source)
tok = Tokenizer(source, eot=7)
ds = datasets.load_from_disk(sys.argv[1])
ds = ds.map(tok.mapper(eot=sys.argv[4]), batched=True)
print("encoded" if runs else "from the cache", ds._fingerprint, sum(ds["len"]))
"""


def map_in_a_new_process(
    folder: Path, source: str, how: str = "name", eot: str = "end"
) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", MAP_ONCE, str(folder), source, how, eot],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": str(time.time_ns() % 1000),
             "XDG_CACHE_HOME": str(folder.parent / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hashed properly" not in done.stderr
    return done.stdout.strip().rsplit(" ", 1)


def test_a_second_run_is_served_from_the_cache_and_another_tokenizer_is_not(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": sample_texts()[:20]}).save_to_disk(str(tmp_path / "ds"))
    from support.tokenizer_files import write_json

    file = str(write_json(tmp_path / "tokenizer.json"))
    seen = set()
    for arguments in (("gpt2",), ("cl100k_base",), ("gpt2", "name", "start"), (file, "object")):
        first = map_in_a_new_process(tmp_path / "ds", *arguments)
        assert first[0].startswith("encoded "), arguments
        seen.add(first[0])
        if arguments in (("gpt2",), (file, "object")):
            again = map_in_a_new_process(tmp_path / "ds", *arguments)
            assert again[0] == first[0].replace("encoded", "from the cache")
            assert again[1] == first[1]
    assert len(seen) == 4


def test_an_error_in_a_worker_of_datasets_arrives_whole(tok: Tokenizer) -> None:
    ds = datasets.Dataset.from_dict({"text": [*["word"] * 40, None]})
    with pytest.raises(BadRowError, match="null in row") as caught:
        ds.map(tok.map, batched=True, num_proc=2)
    assert "nulls=" in caught.value.hint


def test_the_example_for_datasets(tmp_path: Path) -> None:
    found = run_example("datasets_map.py", str(ROOT / "sample" / "*.parquet"), folder=tmp_path)
    assert found == f"{counts(SAMPLES)}, the first ends with {EOT}"


def test_the_example_for_arrow_batches(tmp_path: Path) -> None:
    found = run_example("arrow_batches.py", str(SAMPLES[0]), folder=tmp_path)
    assert found.startswith(counts(SAMPLES[:1]))
    assert "int32" in found
