"""Inputs that look sorted are told; a mixed order is not."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.inputs import SAMPLES

import tokenmill
from tokenmill.planning.sorted_inputs import StreamPart, sorted_warnings, units_as_parts

Row = tuple[int, int, str]  # bytes of text, tokens, language


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The documents of the bundled sample: 297 languages, then the Bible in English."""
    found = []
    for path in SAMPLES:
        for row in pq.read_table(path, columns=["text", "token_count", "language"]).to_pylist():
            found.append((len(row["text"].encode()), row["token_count"] + 1, row["language"]))
    return found


def parts_of(rows: list[Row], parts: int, languages: bool = False) -> list[StreamPart]:
    """Rows in so many units of about the same number of tokens."""
    total = sum(tokens for _, tokens, _ in rows)
    units: list[list[Row]] = [[] for _ in range(parts)]
    before = 0
    for row in rows:
        units[min(parts - 1, before * parts // total)].append(row)
        before += row[1]
    counts = [(sum(r[0] for r in u), sum(r[1] for r in u), len(u)) for u in units if u]
    made = units_as_parts(counts)
    if not languages:
        return made
    spoken = [Counter(row[2] for row in unit) for unit in units if unit]
    return [part._replace(languages=one) for part, one in zip(made, spoken, strict=True)]


@pytest.mark.parametrize("parts", [2, 8, 20, 60])
@pytest.mark.parametrize("languages", [False, True])
def test_documents_in_random_order_are_not_called_sorted(
    rows: list[Row], parts: int, languages: bool
) -> None:
    mixed = list(rows)
    alarms = 0
    for seed in range(40):
        random.Random(seed).shuffle(mixed)
        alarms += bool(sorted_warnings(parts_of(mixed, parts, languages)))
    assert alarms == 0


@pytest.mark.parametrize("documents", [60, 500, 5000])
def test_very_different_documents_that_are_mixed_are_not_called_sorted(documents: int) -> None:
    """Half Chinese, half English, and a few long novels."""
    alarms = 0
    for seed in range(30):
        rng = random.Random(seed)
        drawn: list[Row] = []
        for _ in range(documents):
            ratio, length = rng.choice((1.4, 4.5)), 9000 if rng.random() < 0.01 else 900
            tokens = int(rng.lognormvariate(0, 1) * length) + 1
            drawn.append((int(tokens * ratio), tokens, "zh" if ratio < 2 else "en"))
        for parts in (2, 5, 16, 50):
            alarms += bool(sorted_warnings(parts_of(drawn, parts, languages=True)))
    assert alarms == 0


@pytest.mark.parametrize("parts", [20, 60])
def test_one_source_after_the_other_is_told(rows: list[Row], parts: int) -> None:
    each_ten_times = [row for row in rows for _ in range(10)]
    (told,) = sorted_warnings(parts_of(each_ten_times, parts))
    assert told.startswith("the documents look sorted: between the first and the last sixteenth")
    assert "text per token goes from " in told
    assert told.endswith("; --shuffle puts the documents in random order")


def test_documents_sorted_by_language_are_told() -> None:
    """The same bytes per token everywhere: only the column tells."""
    rows = [(4000, 1000, "de")] * 400 + [(4000, 1000, "fr")] * 400
    (told,) = sorted_warnings(parts_of(rows, 32, languages=True))
    assert "documents in the language 'de' go from 100 % to 0 %" in told
    assert "per token" not in told
    mixed = random.Random(1).sample(rows, len(rows))
    assert sorted_warnings(parts_of(mixed, 32, languages=True)) == []


def test_a_steady_change_is_told() -> None:
    rows = [(3000 + i // 10, 1000, "en") for i in range(16000)]
    (told,) = sorted_warnings(parts_of(rows, 64))
    assert "text per token goes from 3.05 to 4.55 bytes" in told
    flat = [(3000 + i // 100, 1000, "en") for i in range(16000)]
    assert sorted_warnings(parts_of(flat, 64)) == []  # 5 %


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [StreamPart(0.0, 1.0, 4000, 1000, 500)],
        [StreamPart(0.0, 1.0, 0, 0, 0), StreamPart(1.0, 1.0, 0, 0, 0)],
        # A tenth at the end, and nothing of the beginning.
        [StreamPart(0.8, 0.9, 4000, 1000, 500), StreamPart(0.9, 1.0, 1000, 1000, 500)],
        # Two documents are no evidence.
        [StreamPart(0.0, 0.5, 4000, 1000, 1), StreamPart(0.5, 1.0, 1000, 1000, 1)],
    ],
)
def test_too_little_is_no_evidence(parts: list[StreamPart]) -> None:
    assert sorted_warnings(parts) == []


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    return path


def test_plan_and_prepare_warn_of_the_sample_in_the_order_of_its_files(tmp_path: Path) -> None:
    report = tokenmill.plan(SAMPLES, tmp_path / "o", val=0.1, quiet=True)
    (told,) = [text for text in report.warnings if "look sorted" in text]
    assert "text per token goes from 1.72 to 4.02 bytes" in told
    assert "documents in the language 'en' go from 0 % to 100 %" in told
    assert "shuffle=True puts" in told
    result = tokenmill.prepare(SAMPLES, tmp_path / "o", val=0.1, workers=0, quiet=True)
    (told,) = [text for text in result.warnings if "look sorted" in text]
    assert "text per token goes from 1.72 to 4.01 bytes" in told


def test_plan_and_prepare_do_not_warn_of_the_sample_in_random_order(tmp_path: Path) -> None:
    rows = [row for path in SAMPLES for row in pq.read_table(path).to_pylist()]
    random.Random(5).shuffle(rows)
    for number in range(4):
        table(tmp_path / f"{number}.parquet", rows[number::4])
    inputs = [tmp_path / f"{number}.parquet" for number in range(4)]
    report = tokenmill.plan(inputs, tmp_path / "o", val=0.1, quiet=True)
    result = tokenmill.prepare(inputs, tmp_path / "o", val=0.1, workers=0, quiet=True)
    assert not [text for text in report.warnings + result.warnings if "look sorted" in text]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "val": "none"}])
def test_a_shuffled_dataset_gets_no_warning(options: dict[str, Any], tmp_path: Path) -> None:
    options = {"val": 0.1, "quiet": True, **options}
    report = tokenmill.plan(SAMPLES, tmp_path / "o", **options)
    result = tokenmill.prepare(SAMPLES, tmp_path / "o", workers=0, **options)
    assert not [text for text in report.warnings + result.warnings if "look sorted" in text]
