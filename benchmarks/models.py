"""Models' tokenizer files: how fast tokenmill encodes with each, and the library beside it.

    python scripts/get_tokenizers.py FOLDER
    python benchmarks/models.py FOLDER                       # the bundled sample
    python benchmarks/models.py FOLDER --corpus DIR --mb 20  # your own parquet files
    python benchmarks/models.py FOLDER --names llama2,gemma3

Prints a table in markdown. For each model both encode the same documents on one core of one
process, in turn, and processor time counts: others on the machine disturb it little. "first" is
the first pass over the text, with empty caches; the other columns are the best of the passes
after it. A difference is a document whose ids are not those of the library.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import pyarrow.parquet
from tokenizers import Tokenizer as LibraryTokenizer

import tokenmill
from tokenmill.errors import TokenmillError
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.files import find_encoding

SAMPLE = Path(__file__).resolve().parent.parent / "sample"
HEAD = (
    "| model | rules | encoder | MB/s first | MB/s | library MB/s | times faster | differences |",
    "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
)


def read_documents(corpus: Path, column: str, megabytes: float) -> list[str]:
    """Documents from all files, spread over each; long ones are cut after 100,000 characters."""
    paths = sorted(corpus.glob("*.parquet")) if corpus.is_dir() else [corpus]
    if not paths:
        raise SystemExit(f"{corpus}: no parquet files")
    documents: list[str] = []
    for path in paths:
        budget = megabytes * 1e6 / len(paths)
        texts = pyarrow.parquet.read_table(path, columns=[column]).column(0)
        step = max(1, int(texts.nbytes / budget))
        for text in texts.take(np.arange(0, len(texts), step)).to_pylist():
            part = (text or "")[:100_000]
            budget -= len(part.encode())
            documents.append(part)
            if budget <= 0:
                break
    return documents


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of one call, and its result."""
    before = time.process_time()
    result = call()
    return time.process_time() - before, result


def open_library(path: Path) -> Any:
    opened = LibraryTokenizer.from_file(str(path))
    opened.encode_special_tokens = True  # as everywhere here: text is text
    opened.no_truncation()
    opened.no_padding()
    return opened


def measure(path: Path, documents: list[str], rounds: int) -> str:
    """A model's row of the table."""
    encoding = find_encoding(str(path))
    ours, library = tokenmill.Tokenizer(path), open_library(path)
    texts = from_bytes([document.encode() for document in documents])
    megabytes = texts.size / 1e6

    def with_library() -> list[list[int]]:
        return [library.encode(text, add_special_tokens=False).ids for text in documents]

    fast = ours.is_fast  # opens the encoder
    for _ in range(4):  # opens the reference, and spends what is to be checked at the start
        ours.encode_ordinary_batch(["hello world " * 10] * 100)
    times: dict[str, list[float]] = {"ours": [], "library": []}
    for _ in range(rounds + 1):
        spent, (ids, offsets) = seconds(lambda: ours.encode_texts(texts))
        times["ours"].append(spent)
        spent, expected = seconds(with_library)
        times["library"].append(spent)
    found = np.split(ids, offsets[1:-1])
    different = sum(
        not np.array_equal(one, other) for one, other in zip(found, expected, strict=True)
    )
    best, reference = (megabytes / min(times[who][1:]) for who in ("ours", "library"))
    rules = getattr(encoding, "rules", "") or "-"
    why = getattr(encoding, "why_slow", "")
    encoder = "fast" if fast else f"reference: {why}" if why else "reference"
    return (
        f"| {path.parent.name} | {rules} | {encoder} | {megabytes / times['ours'][0]:.1f} "
        f"| {best:.1f} | {reference:.1f} | {best / reference:.1f} | {different} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="has NAME/tokenizer.json")
    parser.add_argument("--corpus", type=Path, default=SAMPLE, help="a folder of parquet files")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--mb", type=float, default=6.0, help="text to encode, at most")
    parser.add_argument("--rounds", type=int, default=3, help="passes after the first")
    parser.add_argument("--names", default="", help="models, with commas between them")
    asked = parser.parse_args()
    wanted = [name for name in asked.names.split(",") if name]
    paths = sorted(asked.folder.glob("*/tokenizer.json"))
    paths = [path for path in paths if not wanted or path.parent.name in wanted]
    if not paths:
        raise SystemExit(f"{asked.folder}: no NAME/tokenizer.json (scripts/get_tokenizers.py)")
    documents = read_documents(asked.corpus, asked.text_column, asked.mb)
    size = sum(len(document.encode()) for document in documents)
    print(f"{len(documents):,} documents, {size / 1e6:.1f} MB, one core, processor time\n")
    print(*HEAD, sep="\n", flush=True)
    for path in paths:
        try:
            print(measure(path, documents, asked.rounds), flush=True)
        except TokenmillError as error:
            print(f"| {path.parent.name} | - | refused: {error.message} | | | | | |", flush=True)


if __name__ == "__main__":
    main()
