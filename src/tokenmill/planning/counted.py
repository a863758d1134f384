"""Tokens that inputs count themselves: FineWeb's column `token_count`, GPT-2 without separators."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tokenmill.inputs.readers.parquet_metadata import open_parquet, text_chunks
from tokenmill.inputs.source import Source
from tokenmill.planning.plan import Plan
from tokenmill.planning.sample import COUNT_COLUMN, has_counts
from tokenmill.settings import PlanSettings
from tokenmill.texts import I64

COUNTED_TOKENIZERS = ("gpt2", "r50k_base")  # of which token_count speaks


class CountedTokens(NamedTuple):
    """Sums of the column token_count."""

    tokens: int
    rows: int
    empty: int


def counted_tokens(plan: Plan) -> CountedTokens | None:
    """What the sources say themselves, where all of them say it and it is of this tokenizer."""
    if not all(speaks_of(plan.settings, source) for source in plan.sources):
        return None
    with ThreadPoolExecutor(max_workers=4) as pool:
        counted = [found for found in pool.map(_counted, plan.sources) if found is not None]
    if len(counted) < len(plan.sources):
        return None
    return CountedTokens(*map(sum, zip(*counted, strict=True)))


def speaks_of(settings: PlanSettings, source: Source) -> bool:
    """Whether counts in a file would be of this tokenizer and of the text that is read: FineWeb's
    are of GPT-2, and of its column text."""
    column = source.text_column or settings.text_column
    plain = column == "text" and not settings.text_template and not settings.where
    return settings.tokenizer in COUNTED_TOKENIZERS and plain and source.kind == "parquet"


def _counted(source: Source) -> CountedTokens | None:
    """None where the file does not say."""
    tokens = rows = empty = 0
    try:
        for counts in counts_of_rows(source):
            tokens, rows = tokens + int(counts.sum()), rows + len(counts)
            empty += int(np.count_nonzero(counts == 0))
    except ValueError:
        return None
    return CountedTokens(tokens, rows, empty)


def counts_of_rows(source: Source) -> Iterator[I64]:
    """The counts of all rows, some at a time. ValueError: there is no such column, a count is
    missing, or a row is known to be no text.

    So it is where the column is damaged: the run does not read it, so that is no error.
    """
    import pyarrow

    try:
        with open_parquet(source.path) as file:
            if not has_counts(file.schema_arrow) or _known_nulls(source.name, file.metadata):
                raise ValueError("no counts")
            for batch in file.iter_batches(1 << 20, columns=[COUNT_COLUMN], use_threads=False):
                if batch.column(0).null_count:
                    raise ValueError("a count is missing")
                counts = batch.column(0).to_numpy().astype(np.int64)
                if (counts < 0).any():
                    raise ValueError("a count is below 0")
                yield counts
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(str(error)) from None


def _known_nulls(name: str, metadata: Any) -> bool:
    """Whether the footer says that rows of the text column are null: they will be bad rows."""
    statistics = (chunk.statistics for chunk in text_chunks(name, metadata, "text"))
    return any(s is not None and s.has_null_count and s.null_count for s in statistics)
