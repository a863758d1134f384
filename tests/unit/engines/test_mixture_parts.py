"""A source of which a mixture takes a part is not encoded whole, and the result is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import mixed, reference
from support.cases import quick
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.engines.unit import UnitWorker
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inputs import segments
from tokenmill.planning.mixture.table import manifest_rows
from tokenmill.tokens.epochs import EVERYTHING
from tokenmill.tokens.order import STEPS, origin_of, pass_source

SEED, HELD = 5, 0.05
MIX = """
tokens = 12_000
[source.web]
inputs = ["web-*.parquet", "old.jsonl"]
weight = 0.6
[source.code]
inputs = ["code.jsonl"]
weight = 0.3
max_epochs = 3.5
[source.math]
inputs = ["dataset:math"]
weight = "rest"
"""
TENTH, NOTHING = {"web": EVERYTHING // 30, "math": EVERYTHING // 20}, {"web": 0, "math": 0}
WHOLE = {"web": EVERYTHING, "math": EVERYTHING}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ranges, several units of each file, and no source is too small to be taken in part."""
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "30000")
    monkeypatch.setenv("TOKENMILL_PART_BYTES", "1")
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    texts = [text[:400] for text in sample_texts()]
    many = [f"{number} {text}" for number in range(3) for text in texts]
    write_parquet(folder / "web-0.parquet", many[:300], rows=50)
    write_parquet(folder / "web-1.parquet", [*many[300:600], *[""] * 40, "short"], rows=60)
    write_jsonl(folder / "old.jsonl", [*many[100:200], "", "tiny"])
    with (folder / "old.jsonl").open("a") as file:
        file.write("not json\n")
    write_jsonl(folder / "code.jsonl", texts[:30])
    write_jsonl(folder / "math.jsonl", many[400:600])
    tokenmill.prepare(folder / "math.jsonl", folder / "math", workers=0, val=0.1, quiet=True)
    (folder / "mix.toml").write_text(MIX)
    return folder


def prepare(folder: Path, output: Path, mix: str = "mix.toml", **options: Any) -> Any:
    options = {"shuffle": True, "seed": SEED, "workers": 0, "val": HELD, "quiet": True, **options}
    options = {"on_bad_row": "quarantine", **options}
    return tokenmill.prepare((), output, mix=folder / mix, **options)


def forced(monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]) -> None:
    monkeypatch.setattr("tokenmill.pipeline.first_bounds", lambda _: bounds)


def dataset_bytes(output: Path) -> dict[str, bytes]:
    files = (path for path in output.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"drop_empty": True, "min_tokens": 90, "max_tokens": 300},
            {"shuffle": False},
            {},
            {"min_tokens": 8},  # empty documents are too short, and counted as empty
        ],
        first=2,
    ),
    ids=str,
)
def test_the_result_is_the_same_as_if_all_had_been_encoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The estimated bound, one that is too low, one below all documents, and none."""
    found = {"estimated": prepare(folder, tmp_path / "estimated" / "o", **options)}
    for name, bounds in {"low": TENTH, "nothing": NOTHING, "whole": WHOLE}.items():
        forced(monkeypatch, bounds)
        found[name] = prepare(folder, tmp_path / name / "o", **options)
    whole = dataset_bytes(tmp_path / "whole" / "o")
    for name, result in found.items():
        assert dataset_bytes(tmp_path / name / "o") == whole, name
        for source in result.manifest.sources:
            parts = (source["documents"], source["dropped"], source["quarantined"])
            assert source["rows"] == sum(parts) + source.get("not_chosen", 0)
    text = found["whole"].manifest.counts["text_bytes"]
    encoded = {name: result.run["encoded_bytes"] for name, result in found.items()}
    assert encoded["whole"] == text
    assert encoded["estimated"] < 0.5 * text
    assert encoded["low"] < text
    if options.get("min_tokens"):
        assert found["whole"].manifest.counts["too_short"] > 0
    assert found["whole"].manifest.counts["quarantined"] == 1


def test_a_part_of_a_source_equals_the_slow_twin(folder: Path, tmp_path: Path) -> None:
    (folder / "good.toml").write_text(MIX.replace(', "old.jsonl"', ""))
    manifest = prepare(folder, tmp_path / "o", "good.toml").manifest
    train, val = mixed.found_documents(manifest, folder, SEED, HELD, {})
    shares = {"web": 7200, "code": 3600, "math": 1200}
    taken = [one for name, share in shares.items() for one in mixed.taken(train[name], share)]
    names = [source["name"] for source in manifest.sources]
    for split, documents in (("train", taken), ("val", val)):
        wanted = [(names[one.source], one.row) for one in sorted(documents)]
        assert mixed.origins(tmp_path / "o", split) == wanted
    for row in manifest_rows(manifest.plan["settings"], manifest.sources):
        there = sum(len(one.ids) for one in train[row.source])
        assert row.estimated == (row.source != "code")
        assert row.there_tokens == pytest.approx(there, rel=0.9 if row.estimated else 0)
    assert tokenmill.verify(tmp_path / "o").ok


def test_a_tenth_of_a_source_costs_less_than_a_fifth_of_the_encoding(tmp_path: Path) -> None:
    texts = [f"{number} {text[:300]}" for number in range(12) for text in sample_texts()]
    write_parquet(tmp_path / "web.parquet", texts, rows=200)
    tokens = sum(len(reference.encoded("gpt2", text)) for text in texts)
    (tmp_path / "mix.toml").write_text(
        f"[source.web]\ninputs = ['web.parquet']\ntokens = {tokens // 10}\n"
    )
    result = prepare(tmp_path, tmp_path / "o", val="none")
    text = sum(len(one.encode()) for one in texts)
    assert result.manifest.counts["text_bytes"] == text
    assert 0.09 * text < result.run["encoded_bytes"] < 0.2 * text
    assert json.loads((tmp_path / "o/run.json").read_text())["encoded_bytes"] < 0.2 * text


@pytest.mark.parametrize("unit", quick([0, 1, 2], 1))
def test_a_job_that_stops_in_any_pass_is_resumed_with_the_same_bounds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: int
) -> None:
    """It stops in the first pass, in each further one, and goes on where it was: a resumed run
    asks for no other bounds."""
    forced(monkeypatch, TENTH)
    prepare(folder, tmp_path / "whole" / "o")
    place, stopped = UnitWorker.place, 0

    def stop(self: UnitWorker, encoded: Any, before: Any) -> Any:
        nonlocal stopped
        skipping = self.job.skipping
        assert skipping is not None
        if skipping.further == (stopped > 0) and encoded.summary.unit.segment == unit:
            stopped += 1
            raise TokenmillError("stopped")
        return place(self, encoded, before)

    output = tmp_path / "resumed" / "o"
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(UnitWorker, "place", stop)
            with pytest.raises(TokenmillError, match="stopped"):
                prepare(folder, output)
        forced(monkeypatch, WHOLE)  # would be another job
    assert stopped == 2
    prepare(folder, output)
    assert dataset_bytes(output) == dataset_bytes(tmp_path / "whole" / "o")


def test_what_cannot_be_met_is_known_only_when_all_is_encoded_and_nothing_is_encoded_twice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(monkeypatch, TENTH)
    changing = folder / "changing.toml"
    one = "[source.web]\ninputs = ['web-*.parquet']\ntokens = {}\n"
    changing.write_text(one.format(900_000))
    with pytest.raises(UsageError, match="source web: asked 900,000 tokens"):
        prepare(folder, tmp_path / "o", "changing.toml")
    changing.write_text(one.format(5000))
    result = prepare(folder, tmp_path / "o", "changing.toml")
    assert result.run["units_encoded"] == result.run["encoded_bytes"] == 0
    prepare(folder, tmp_path / "fresh" / "o", "changing.toml")
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "fresh" / "o")


def test_amounts_that_change_to_most_of_a_source_give_what_a_fresh_job_gives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = folder / "more.toml"
    mix = "[source.web]\ninputs = ['web-*.parquet']\nweight = 1\n[source.code]\n"
    mix += "inputs = ['code.jsonl']\ntokens = {}\n"
    changing.write_text("tokens = 99_000\n" + mix.format(90_000))
    with pytest.raises(UsageError, match="source code: asked 90,000 tokens"):
        prepare(folder, tmp_path / "o", "more.toml")
    changing.write_text("tokens = 60_000\n" + mix.format(2000))
    result = prepare(folder, tmp_path / "o", "more.toml")
    assert result.run["encoded_bytes"] > 0, "more of web is needed"
    fresh = prepare(folder, tmp_path / "fresh" / "o", "more.toml")
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "fresh" / "o")
    rows = manifest_rows(fresh.manifest.plan["settings"], fresh.manifest.sources)
    assert not any(row.estimated for row in rows)


def test_small_sources_and_sources_that_are_mostly_taken_are_encoded_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENMILL_PART_BYTES")
    result = prepare(folder, tmp_path / "o")
    assert result.run["encoded_bytes"] == result.manifest.counts["text_bytes"]
    rows = manifest_rows(result.manifest.plan["settings"], result.manifest.sources)
    assert not any(row.estimated for row in rows)


def test_numbers_of_further_passes_name_their_source() -> None:
    for sources in (1, 2, 7):
        numbers = [pass_source(n, s, sources) for n in range(4) for s in range(sources)]
        assert len(set(numbers)) == len(numbers)
        steps = range(sources, sources + STEPS)
        assert not set(numbers) & set(steps)
        assert [origin_of(number, sources) for number in numbers] == [*range(sources)] * 4
        assert {origin_of(number, sources) for number in steps} == {-1}
