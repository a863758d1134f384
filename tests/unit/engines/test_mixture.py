"""`--mix` against its slow twin: budgets, epochs, splits, accounting; and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import mixed
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.errors import RefusedError, TokenmillError, UsageError
from tokenmill.inputs import segments
from tokenmill.planning.mixture.table import manifest_rows

SEED, HELD = 5, 0.1
MIX = """
tokens = 60_000
[source.web]
inputs = ["web-*.parquet"]
weight = 0.35
[source.code]
inputs = ["code.jsonl"]
text_column = "content"
weight = 0.3
max_epochs = 3.5
[source.wiki]
inputs = ["wiki.jsonl"]
weight = 0.1
max_epochs = 2
[source.math]
inputs = ["math.jsonl.gz"]
tokens = 5000
[source.forum]
inputs = ["forum.parquet"]
weight = "rest"
"""
SHARES = [Fraction(21000), Fraction(18000), Fraction(6000), Fraction(5000), Fraction(10000)]
NAMES = ["web", "code", "wiki", "math", "forum"]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ranges, and several units of each file."""
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "30000")
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five sources, one of two files; among them equal files, empty and equal documents."""
    folder = tmp_path_factory.mktemp("mixed")
    texts = [text[:600] for text in sample_texts()]
    write_parquet(folder / "web-0.parquet", texts[:120], rows=25)
    write_parquet(folder / "web-1.parquet", [*texts[120:200], "", ""], rows=40)
    write_jsonl(folder / "code.jsonl", texts[200:245], field="content")
    write_jsonl(folder / "wiki.jsonl", texts[:40] + ["the same"] * 30)
    write_jsonl(folder / "math.jsonl.gz", texts[100:190])
    write_parquet(folder / "forum.parquet", [*texts[120:200], "", ""], rows=40)
    (folder / "mix.toml").write_text(MIX)
    return folder


def prepare(folder: Path, output: Path, mix: str = "mix.toml", **options: Any) -> Any:
    options = {"shuffle": True, "seed": SEED, "workers": 0, "val": HELD, "quiet": True, **options}
    return tokenmill.prepare((), output, mix=folder / mix, **options)


def in_order(manifest: Any, documents: list[Any], names: list[str]) -> list[Any]:
    """By key; without a shuffle, the sources of the mixture one after the other."""
    if manifest.settings.shuffle:
        return sorted(documents)
    groups = [names.index(source["mix"]) for source in manifest.sources]
    return sorted(documents, key=lambda one: (groups[one.source], one))


def check(output: Path, manifest: Any, train: list[Any], val: list[Any]) -> None:
    names = [source["name"] for source in manifest.sources]
    opened = tokenmill.open_dataset(output)
    for split, documents in (("train", train), ("val", val)):
        wanted = in_order(manifest, documents, NAMES)
        flat = list(itertools.chain.from_iterable(one.ids for one in wanted))
        assert list(opened[split].tokens) == flat, split
        assert mixed.origins(output, split) == [(names[one.source], one.row) for one in wanted]
    assert tokenmill.verify(output).ok


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("most_runs", ["8192", "3"])
def test_a_mixture_of_five_sources_equals_its_slow_twin(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_runs: str, shuffle: bool
) -> None:
    monkeypatch.setenv("TOKENMILL_MAX_RUNS", most_runs)
    manifest = prepare(folder, tmp_path / "o", shuffle=shuffle).manifest
    train, val = mixed.found_documents(manifest, folder, SEED, HELD, {"code": "content"})
    budgets = mixed.whole_numbers(SHARES)
    taken = [mixed.taken(train[name], budget) for name, budget in zip(NAMES, budgets, strict=True)]
    check(tmp_path / "o", manifest, [one for part in taken for one in part], val)
    rows = manifest_rows(manifest.plan["settings"], manifest.sources)
    assert [row.source for row in rows] == NAMES
    for row, part, budget in zip(rows, taken, budgets, strict=True):
        there = train[row.source]
        longest = max(len(one.ids) for one in there)
        assert row.taken_tokens == sum(len(one.ids) for one in part)
        assert budget <= row.taken_tokens < budget + longest  # within one document
        assert row.there_tokens == sum(len(one.ids) for one in there)
        assert (row.there_documents, row.taken_documents) == (len(there), len(part))
        assert row.epochs == round(row.taken_tokens / row.there_tokens, 4)
    assert rows[1].epochs > 2, "a source is repeated"
    held = set(mixed.origins(tmp_path / "o", "val"))
    assert held
    assert not held & set(mixed.origins(tmp_path / "o", "train")), "val is in no epoch of train"


def test_without_a_shuffle_the_sources_follow_one_another(folder: Path, tmp_path: Path) -> None:
    shuffled = prepare(folder, tmp_path / "s")
    manifest = prepare(folder, tmp_path / "o", shuffle=False).manifest
    groups = {source["name"]: source["mix"] for source in manifest.sources}
    for split in ("train", "val"):
        found = mixed.origins(tmp_path / "o", split)
        assert sorted(found) == sorted(mixed.origins(tmp_path / "s", split)), "the same documents"
        assert [name for name, _ in itertools.groupby(groups[one] for one, _ in found)] == NAMES
    assert manifest.counts == shuffled.manifest.counts
    for source, row in mixed.origins(tmp_path / "o", "train")[:9]:
        assert tokenmill.inspect_row(tmp_path / "o", source=source, row=row).documents
    tokenmill.export(tmp_path / "o", tmp_path / "e", format="megatron", workers=0)
    assert mixed.origins(tmp_path / "e", "train") == mixed.origins(tmp_path / "o", "train")


def test_rows_add_up_in_every_source_and_copies_are_counted_apart(
    folder: Path, tmp_path: Path
) -> None:
    manifest = prepare(folder, tmp_path / "o", drop_empty=True).manifest
    train, val = mixed.origins(tmp_path / "o", "train"), mixed.origins(tmp_path / "o", "val")
    for source in manifest.sources:
        parts = (source["documents"], source["dropped"], source["quarantined"])
        assert source["rows"] == sum(parts) + source.get("not_chosen", 0)
        mine = [row for name, row in train if name == source["name"]]
        held = [row for name, row in val if name == source["name"]]
        assert source["documents"] == len(set(mine)) + len(held)
        assert source.get("copies", 0) == len(mine) - len(set(mine))
    assert manifest.counts["not_chosen"] > 0
    assert manifest.counts["copies"] > 0
    assert manifest.counts["dropped"] == manifest.counts["empty"] > 0
    assert manifest.counts["tokens"] == sum(split.tokens for split in manifest.splits)


def test_every_row_of_a_mixture_is_found_with_its_copies(folder: Path, tmp_path: Path) -> None:
    manifest = prepare(folder, tmp_path / "o").manifest
    train = mixed.origins(tmp_path / "o", "train")
    for source in manifest.sources[:2]:
        name = source["name"]
        for row in range(source["rows"]):
            view = tokenmill.inspect_row(tmp_path / "o", source=name, row=row)
            copies = [one for one in view.documents if one.split == "train"]
            assert len(copies) == train.count((name, row))
            assert view.state == ("written" if view.documents else "not chosen")
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").complete


def test_documents_can_be_what_weights_count(folder: Path, tmp_path: Path) -> None:
    (folder / "documents.toml").write_text(
        "unit = 'documents'\ndocuments = 200\n"
        "[source.web]\ninputs = ['web-*.parquet']\nweight = 3\n"
        "[source.wiki]\ninputs = ['wiki.jsonl']\nweight = 1\n"
    )
    manifest = prepare(folder, tmp_path / "o", "documents.toml", val="none").manifest
    train, _ = mixed.found_documents(manifest, folder, SEED, 0.0, {})
    taken = [mixed.taken(train["web"], 150, "documents"), mixed.taken(train["wiki"], 50, "docs")]
    assert [len(part) for part in taken] == [150, 50]
    found = mixed.origins(tmp_path / "o", "train")
    names = [source["name"] for source in manifest.sources]
    assert found == [(names[one.source], one.row) for one in sorted(taken[0] + taken[1])]


def test_a_source_that_is_repeated_too_often_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy of a unit is a file: a million epochs of one document would be a million files."""
    with monkeypatch.context() as patch:
        patch.setattr("tokenmill.engines.order.choosing.MOST_COPIES", 2)
        with pytest.raises(UsageError, match="3 times, and 2 times is the most"):
            prepare(folder, tmp_path / "o")
    assert prepare(folder, tmp_path / "o").manifest


def test_without_a_total_the_mixture_is_as_large_as_possible(folder: Path, tmp_path: Path) -> None:
    (folder / "most.toml").write_text(
        "[source.web]\ninputs = ['web-*.parquet']\nweight = 1\n"
        "[source.wiki]\ninputs = ['wiki.jsonl']\nweight = 1\n"
    )
    manifest = prepare(folder, tmp_path / "o", "most.toml").manifest
    web, wiki = manifest_rows(manifest.plan["settings"], manifest.sources)
    assert wiki.epochs == 1
    assert wiki.taken_tokens <= web.taken_tokens < wiki.taken_tokens + 700


def dataset_bytes(output: Path) -> dict[str, bytes]:
    files = (path for path in output.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


def test_amounts_may_change_where_they_cannot_be_met_and_nothing_is_encoded_twice(
    folder: Path, tmp_path: Path
) -> None:
    changing = folder / "changing.toml"
    changing.write_text(MIX.replace("max_epochs = 3.5", "max_epochs = 1.5"))
    with pytest.raises(UsageError, match="source code: asked 18,000 tokens") as error:
        prepare(folder, tmp_path / "o", "changing.toml")
    assert "max_epochs = " in error.value.hint
    assert "encodes nothing again" in error.value.hint
    assert not (tmp_path / "o/manifest.json").exists()
    with pytest.raises(UsageError, match="cannot be met"):  # the same again
        prepare(folder, tmp_path / "o", "changing.toml")
    changing.write_text(MIX.replace("web-*", "web-0*"))
    with pytest.raises(RefusedError, match="input no longer given"):
        prepare(folder, tmp_path / "o", "changing.toml")
    changing.write_text(MIX)
    result = prepare(folder, tmp_path / "o", "changing.toml")
    assert result.run["units_encoded"] == 0
    prepare(folder, tmp_path / "fresh")
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "fresh")
    changing.write_text(MIX.replace("60_000", "50_000"))
    with pytest.raises(RefusedError, match="mixture, total: 60000 -> 50000"):
        prepare(folder, tmp_path / "o", "changing.toml")


def test_amounts_are_bound_once_documents_are_chosen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmill import assembly

    def fail(*_: object, **__: object) -> None:
        raise TokenmillError("stopped before the commit")

    changing = folder / "bound.toml"
    changing.write_text(MIX)
    with monkeypatch.context() as patch:
        patch.setattr(assembly.committing, "commit", fail)
        with pytest.raises(TokenmillError, match="stopped before the commit"):
            prepare(folder, tmp_path / "o", "bound.toml")
    changing.write_text(MIX.replace("60_000", "50_000"))
    with pytest.raises(RefusedError, match="is bound to another plan"):
        prepare(folder, tmp_path / "o", "bound.toml")
    changing.write_text(MIX)
    resumed = prepare(folder, tmp_path / "o", "bound.toml")
    assert resumed.run["units_encoded"] == 0
    prepare(folder, tmp_path / "fresh")
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": "docs:5"}, "val='docs:5': cannot be the validation split of a mixture"),
        ({"val": "tail:0.1"}, "cannot be the validation split of a mixture"),
        ({"val": None, "val_inputs": "x.jsonl"}, "val_inputs: not with mix"),
        ({"limit_docs": 5}, "limit_docs and limit_tokens: not with mix"),
        ({"as_kind": "jsonl"}, "not with mix"),
        ({"text_column": ["*.jsonl=a"]}, "not with mix"),
    ],
)
def test_what_does_not_go_with_a_mixture_is_refused(
    folder: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        prepare(folder, tmp_path / "o", **options)
    assert not (tmp_path / "o").exists()


def test_inputs_beside_a_mixture_and_files_in_two_sources_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the file names all inputs"):
        tokenmill.prepare(folder / "wiki.jsonl", tmp_path / "o", mix=folder / "mix.toml", workers=0)
    (folder / "twice.toml").write_text(MIX.replace('"wiki.jsonl"', '"wiki.jsonl", "web-0.parquet"'))
    with pytest.raises(UsageError, match=r"web-0.parquet: in two sources .*\(web and wiki\)"):
        prepare(folder, tmp_path / "o", "twice.toml")
    (folder / "none.toml").write_text(MIX.replace("wiki.jsonl", "nosuch.jsonl"))
    with pytest.raises(UsageError, match=r"source wiki: .*nosuch\.jsonl"):
        prepare(folder, tmp_path / "o", "none.toml")


def test_a_default_that_cuts_the_stream_becomes_a_fraction(folder: Path, tmp_path: Path) -> None:
    manifest = prepare(
        folder, tmp_path / "o", format="llmc", val=None, allow_empty_split=True
    ).manifest
    assert str(manifest.settings.val) == "0.0005"


def test_plan_shows_the_table_and_warns_where_it_cannot_be_met(
    folder: Path, tmp_path: Path
) -> None:
    report = tokenmill.plan(
        (), tmp_path / "o", mix=folder / "mix.toml", shuffle=True, val=HELD, quiet=True
    )
    rows = report.estimate.mixture
    assert [row.source for row in rows] == NAMES
    assert sum(row.taken_tokens for row in rows) == pytest.approx(60_000, rel=0.01)
    assert "(estimated)" in str(report)
    # Two bytes a token: most of what is encoded, what is taken, and the dataset.
    encoded = sum(row.there_tokens for row in rows)
    assert report.estimate.disk_bytes > 2 * (encoded / 2 + 2 * 60_000)
    (folder / "much.toml").write_text(MIX.replace("60_000", "900_000"))
    report = tokenmill.plan(
        (), tmp_path / "o", mix=folder / "much.toml", shuffle=True, val=HELD, quiet=True
    )
    assert any("cannot be met" in text for text in report.estimate.warnings)


def test_the_plan_of_a_job_without_a_mixture_does_not_name_one(
    folder: Path, tmp_path: Path
) -> None:
    made = tokenmill.prepare(folder / "wiki.jsonl", tmp_path / "o", workers=0, val="none")
    assert "mixture" not in made.manifest.plan["settings"]
    assert "mix" not in made.manifest.sources[0]
    assert not msgspec.json.encode(made.manifest).count(b"copies")
