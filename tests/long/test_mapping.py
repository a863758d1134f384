"""`tok.map` under datasets, Arrow, multiprocessing and Ray: shapes, caching, nulls, examples."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest
from support import reference
from support.inputs import ROOT, SAMPLES, sample_texts
from support.mapping import (
    counts,
    run_example,
    tok,  # noqa: F401  # noqa: F401  # noqa: F401  # noqa: F401
)

from tokenmill import Tokenizer

LONG_LINE = """
import resource, sys, tokenmill, numpy as np
words = "three hundred megabytes of words in one line, and no end in sight; "
text = words * 4_500_000
assert len(text) > 300_000_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tok = tokenmill.Tokenizer("gpt2")
found = tok.map({"text": [text]})
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = found["ids"][0]
one = len(tok.encode_ordinary(words * 2)) - len(tok.encode_ordinary(words))
assert len(ids) == len(tok.encode_ordinary(words)) + 4_499_999 * one + 1, len(ids)
print((after - before) * 1024)
"""


def test_a_line_of_300_megabytes_takes_a_few_times_its_size() -> None:
    done = subprocess.run([sys.executable, "-c", LONG_LINE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 5 * 300_000_000, done.stdout


def test_the_example_for_ray_data(tmp_path: Path) -> None:
    assert run_example("ray_data.py", str(ROOT / "sample"), folder=tmp_path).endswith(
        counts(SAMPLES)
    )


def test_every_example_has_a_test() -> None:
    source = "".join(path.read_text() for path in (ROOT / "tests").glob("*/test_mapping.py"))
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.name}"' in source


PATHOLOGICAL = {
    "a megabyte of one letter": "a" * 1_000_000,
    "999,999 spaces before a letter": " " * 999_999 + "x",
    "a megabyte of spaces": " " * 1_000_000,
    "999,999 line ends": "\n" * 999_999 + "x",
    "a megabyte of one Han letter": "国" * 350_000,
    "a megabyte of marks": "e" + "\u0301" * 500_000,
    "newer letters, then a million spaces": "A\u088f's" + " " * 999_999 + "x",
}


def test_a_pathological_document_neither_hangs_nor_kills_a_worker_of_datasets() -> None:
    tok, enc = Tokenizer("o200k_base"), reference.encoding("o200k_base")
    texts = list(PATHOLOGICAL.values())
    ds = datasets.Dataset.from_dict({"text": ["before", *texts, "after"]})
    begin = time.monotonic()
    done = ds.map(tok.map, batched=True, num_proc=2, batch_size=3)
    assert time.monotonic() - begin < 120
    for text, ids in zip(ds["text"], done["ids"], strict=True):
        assert ids[-1] == tok.eot_token
        assert enc.decode(ids[:-1]) == text
    for text, ids in zip(texts, done["ids"][1:], strict=False):  # alone, and as one row
        assert tok.encode_ordinary(text) == ids[:-1]
        assert tok.map({"text": text})["ids"].tolist() == ids
    codec = enc.encode_ordinary("before")
    assert done["ids"][0][:-1] == codec
    assert done["ids"][1][:-1] == enc.encode_ordinary(texts[0])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_example_for_multiprocessing(method: str, tmp_path: Path) -> None:
    found = run_example(
        "multiprocessing_pool.py", str(ROOT / "sample" / "*.parquet"), method, folder=tmp_path
    )
    assert found == counts(SAMPLES)


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


def test_the_example_for_arrow_batches(tmp_path: Path) -> None:
    found = run_example("arrow_batches.py", str(SAMPLES[0]), folder=tmp_path)
    assert found.startswith(counts(SAMPLES[:1]))
    assert "int32" in found
