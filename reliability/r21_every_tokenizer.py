"""R21: any tokenizer file gives the ids of its own library.

The farm draws tokenizer files that nobody has written yet: `tokenizer.json`, SentencePiece models,
`.tiktoken` ranks. Each file gets documents made for it. See `reliability/farm`.
"""

from __future__ import annotations

import os
from pathlib import Path

from reliability.scorecard import Check

ID = "R21"
PROMISE = "every tokenizer file"
MARK = (
    "1,000 drawn tokenizer files of every kind, 2,000 hostile documents each: the ids of "
    "tokenizers, sentencepiece or tiktoken"
)
FILES, DOCUMENTS = 1000, 2000
FAST_FILES, FAST_DOCUMENTS = 50, 400


def run(check: Check) -> str:
    first = check.seed * 1_000_000
    count = check.scale(DOCUMENTS, FAST_DOCUMENTS)
    names = [f"file {first + i}" for i in range(check.scale(FILES, FAST_FILES))]

    def one(name: str, folder: Path) -> str:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
        os.environ["RUST_BACKTRACE"] = "0"
        from reliability.farm.comparing import examine
        from reliability.farm.drawing import draw

        result = examine(draw(int(name.split()[1]), folder), count)
        assert not result.differences, (
            f"{result.kind}, {result.line}, {result.rules or 'reference'}: {result.differences} of "
            f"{result.documents} documents differ: {result.example}"
        )
        return f"{result.kind} {'fast' if result.is_fast else 'reference'} {result.documents}"

    check.each(names, one, seconds=120)
    return told(check)


def told(check: Check) -> str:
    """Files by kind, how many were fast, documents."""
    kinds: dict[str, int] = {}
    fast = documents = 0
    for outcome, number in check.outcomes.items():
        kind, encoder, count = outcome.split()
        kinds[kind] = kinds.get(kind, 0) + number
        fast += number * (encoder == "fast")
        documents += number * int(count)
    shown = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
    return (
        f"{check.cases:,} files ({shown}), {fast:,} of them fast, {documents:,} documents: "
        f"{len(check.failures):,} files with differences"
    )
