"""`export --by-source`: each source of a mixture, or each input file, as a dataset of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.cli.convert import data_path_options
from tokenmill.errors import UsageError
from tokenmill.pipeline import export_by_source

MIX = """
tokens = 9000
[source.web]
inputs = ["web-*.parquet"]
weight = 2
[source.code]
inputs = ["code.jsonl"]
weight = 1
max_epochs = 3.0
"""
Documents = list[tuple[str, int, tuple[int, ...]]]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "9000")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    texts = [text[:500] for text in sample_texts()]
    write_parquet(folder / "web-0.parquet", [*texts[:50], "", ""], rows=25)
    write_parquet(folder / "web-1.parquet", texts[120:140], rows=40)
    write_jsonl(folder / "code.jsonl", texts[200:217])
    (folder / "mix.toml").write_text(MIX)
    return folder


def prepared(folder: Path, output: Path, kind: str) -> Path:
    options: dict[str, Any] = {"workers": 0, "quiet": True, "val": 0.1}
    if kind == "plain":
        files = sorted(path for path in folder.iterdir() if path.suffix != ".toml")
        tokenmill.prepare(files, output, **options)
    else:
        options |= {"mix": folder / "mix.toml", "shuffle": kind == "shuffled"}
        tokenmill.prepare((), output, **options)
    return output


def documents(folder: Path) -> dict[str, Documents]:
    found: dict[str, Documents] = {}
    for name, split in tokenmill.open_dataset(folder).items():
        view = split.documents
        found[name] = [
            (*view.source(number), tuple(np.asarray(one).tolist()))
            for number, one in enumerate(view)
        ]
    return found


@pytest.mark.parametrize("kind", ["plain", "in-turn", "shuffled"])
def test_each_source_has_its_documents_in_the_same_order(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    source = prepared(folder, tmp_path / "d", kind)
    whole, manifest = documents(source), tokenmill.open_dataset(source).manifest
    results = export_by_source(source, tmp_path / "o", format="megatron", workers=0)
    names = ["code", "web-0", "web-1"] if kind == "plain" else ["code", "web"]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == names
    assert len(results) == len(names)
    for name, result in results.items():
        key = "name" if kind == "plain" else "mix"
        mine = {entry["name"] for entry in manifest.sources if entry[key] == name}
        folder_of = Path(result.output)
        expected = {split: [one for one in some if one[0] in mine] for split, some in whole.items()}
        found = documents(folder_of)
        assert found == {split: some for split, some in expected.items() if split in found}
        assert all(not some for split, some in expected.items() if split not in found)
        counts = result.manifest.counts
        assert counts["tokens"] == sum(len(ids) for some in found.values() for *_, ids in some)
        assert counts["rows"] == (
            counts["documents"] + counts["dropped"] + counts["quarantined"] + counts["not_chosen"]
        )
        report = tokenmill.verify_deep(folder_of, sample="all")
        assert (report.problems, report.complete) == ([], True)
        other = next(entry["name"] for entry in manifest.sources if entry["name"] not in mine)
        view = tokenmill.inspect_row(folder_of, source=other, row=3)
        assert (view.state, view.reason) == ("not chosen", f"only documents of {name} are here")


def test_weights_are_shares_of_the_tokens_that_are_taken(folder: Path, tmp_path: Path) -> None:
    source = prepared(folder, tmp_path / "d", "shuffled")
    results = export_by_source(source, tmp_path / "o", format="megatron", workers=0)
    rows = {row.source: row for row in tokenmill.inspect(source).mixture}
    lines = data_path_options(results)
    assert list(lines) == ["--train-data-path", "--valid-data-path"]
    words = lines["--train-data-path"].split()
    for weight, prefix, name in zip(words[::2], words[1::2], ("web", "code"), strict=True):
        assert float(weight) == pytest.approx(rows[name].share, abs=1e-5)
        assert prefix == str(tmp_path / f"o/{name}/{name}_train_text_document")
        assert Path(f"{prefix}.bin").exists()
        assert Path(f"{prefix}.idx").exists()


def test_one_source_can_be_shuffled_too(folder: Path, tmp_path: Path) -> None:
    source = prepared(folder, tmp_path / "d", "in-turn")
    options: dict[str, Any] = {"format": "llmc", "workers": 0, "quiet": True, "only": "web"}
    tokenmill.export(source, tmp_path / "p", **options)
    tokenmill.export(source, tmp_path / "s", shuffle=True, seed=3, **options)
    before, after = documents(tmp_path / "p"), documents(tmp_path / "s")
    assert before != after
    assert {split: sorted(some) for split, some in before.items()} == {
        split: sorted(some) for split, some in after.items()
    }
    assert tokenmill.verify_deep(tmp_path / "s", sample="all").complete


def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    source = prepared(folder, tmp_path / "d", "plain")
    options: dict[str, Any] = {"format": "llmc", "workers": 0}
    with pytest.raises(UsageError, match="no source 'wob'"):
        tokenmill.export(source, tmp_path / "o", only="wob", quiet=True, **options)
    with pytest.raises(UsageError, match="holds a dataset"):
        export_by_source(source, source, **options)
    tokenmill.export(source, tmp_path / "one", only="code.jsonl", quiet=True, **options)
    with pytest.raises(UsageError, match="alone already"):
        export_by_source(tmp_path / "one", tmp_path / "o", **options)
    files = [folder / "code.jsonl", folder / "web-0.parquet"]
    tokenmill.prepare(files, tmp_path / "cut", val="docs:3", workers=0, quiet=True)
    with pytest.raises(UsageError, match="cut off the stream of all sources"):
        export_by_source(tmp_path / "cut", tmp_path / "o", **options)
