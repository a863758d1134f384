"""`verify --deep` of mixtures: every copy is compared, and whether it should be there at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.deep import reseal, write_tokens
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.dataset.deep.mixture import ChoiceCheck, copies_in_order
from tokenmill.engines.order import choosing, order_worker
from tokenmill.inputs import segments
from tokenmill.tokens import epochs, order

MIX = """
tokens = 14000
[source.web]
inputs = ["web-*.parquet"]
weight = 6
[source.code]
inputs = ["code.jsonl"]
text_column = "content"
weight = 3
max_epochs = 3.0
[source.math]
inputs = ["math.jsonl.gz"]
tokens = 1500
"""


@pytest.fixture(autouse=True, scope="module")
def small_ranges() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_RANGE_BYTES", "9000")
        patch.setattr(segments, "SEGMENT_BYTES", 1 << 14)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    texts = [text[:500] for text in sample_texts()]
    write_parquet(folder / "web-0.parquet", [*texts[:70], "", "same", "same"], rows=25)
    write_parquet(folder / "web-1.parquet", [*texts[120:140], ""], rows=40)
    write_jsonl(folder / "code.jsonl", texts[200:217], field="content")
    write_jsonl(folder / "math.jsonl.gz", texts[100:150])
    (folder / "mix.toml").write_text(MIX)
    (folder / "documents.toml").write_text(
        MIX.replace("tokens = 14000", 'unit = "documents"\ndocuments = 90').replace(
            "tokens = 1500", "documents = 13"
        )
    )
    return folder


def prepare(folder: Path, output: Path, mix: str = "mix.toml", **options: Any) -> Path:
    options = {"seed": 7, "workers": 0, "val": 0.1, "quiet": True, "shuffle": True, **options}
    tokenmill.prepare((), output, mix=folder / mix, **options)
    return output


@pytest.fixture(scope="module", params=["shuffled", "in-turn", "documents"])
def made(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    output = tmp_path_factory.mktemp("deep-mixed") / "o"
    mix = "documents.toml" if request.param == "documents" else "mix.toml"
    return prepare(folder, output, mix, shuffle=request.param == "shuffled", min_tokens=2)


def problems(folder: Path, sample: Any = "all") -> list[str]:
    return [one.message for one in tokenmill.verify_deep(folder, sample=sample).problems]


def test_a_mixture_is_complete_with_every_copy(made: Path) -> None:
    counts = tokenmill.open_dataset(made).manifest.counts
    assert counts["copies"] > 10
    for sample in ("all", None, 10**9):
        report = tokenmill.verify_deep(made, sample=sample)
        assert report.problems == []
        assert report.complete
        assert report.documents == counts["documents"]
        assert report.tokens == counts["tokens"]
    some = tokenmill.verify_deep(made, sample=12)
    assert some.problems == []
    assert 8 <= some.documents <= 12  # two copies of one document are one document


@pytest.mark.parametrize("percent", ["100", "10"])
def test_a_source_of_which_a_part_was_encoded_is_complete_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percent: str
) -> None:
    monkeypatch.setenv("TOKENMILL_PART_BYTES", "1")
    monkeypatch.setenv("TOKENMILL_BOUND_PERCENT", percent)  # 10: too low, and a second pass
    (folder / "part.toml").write_text(MIX.replace("tokens = 14000", "tokens = 4000"))
    output = prepare(folder, tmp_path / "o", "part.toml", min_tokens=120)
    manifest = tokenmill.open_dataset(output).manifest
    assert any(entry["train"].get("bound") for entry in manifest.sources)
    report = tokenmill.verify_deep(output, sample="all")
    assert (report.problems, report.complete) == ([], True)
    path = output / "manifest.json"
    changed = msgspec.json.decode(path.read_bytes())
    (entry,) = [one for one in changed["sources"] if one["name"] == "web-0.parquet"]
    entry["train"]["taken_documents"] += 1
    path.write_bytes(msgspec.json.encode(changed))
    reseal(output)
    assert any("taken_documents" in message for message in problems(output))


def test_a_mixture_that_export_shuffles_is_complete_too(made: Path, tmp_path: Path) -> None:
    tokenmill.export(made, tmp_path / "o", format="llmc", shuffle=True, workers=0, quiet=True)
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert (report.problems, report.complete) == ([], True)


def test_a_changed_copy_is_found(folder: Path, tmp_path: Path) -> None:
    output = prepare(folder, tmp_path / "o")
    entry = tokenmill.open_dataset(output).manifest.sources
    (code,) = [one["name"] for one in entry if one["mix"] == "code"]
    copies = tokenmill.inspect_row(output, source=code, row=3).documents
    copies = copies or tokenmill.inspect_row(output, source=code, row=4).documents
    last = max(copies, key=lambda one: one.document)
    assert len(copies) > 1
    write_tokens(output, "train", last.first_token + 1, np.array([11]))
    reseal(output)
    (message,) = problems(output)
    assert f"train document {last.document}" in message
    assert "the reference says" in message


@pytest.mark.parametrize("shuffle", [True, False])
def test_copies_out_of_order_are_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    with monkeypatch.context() as other:
        other.setattr(order_worker, "copy_keys", lambda keys, copy: keys + np.uint64(copy))
        output = prepare(folder, tmp_path / "o", shuffle=shuffle)
    assert any("its key belongs before" in message for message in problems(output))


def test_sources_that_do_not_follow_one_another_are_found(folder: Path, tmp_path: Path) -> None:
    output = prepare(folder, tmp_path / "o")
    path = output / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    assert manifest["plan"]["settings"].pop("shuffle")
    path.write_bytes(msgspec.json.encode(manifest))
    reseal(output)
    assert any("its key belongs before" in message for message in problems(output))


def test_other_documents_than_those_with_the_smallest_choice_keys_are_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(epochs, "CHOICE", np.uint64(5))
        output = prepare(folder, tmp_path / "o")
    for sample in ("all", None):
        assert any("its choice key is before" in message for message in problems(output, sample))


def test_more_or_less_than_the_budget_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = choosing.budgets
    for name, change in (("more", 4000), ("less", -4000)):

        def changed(*args: Any, change: int = change) -> list[Any]:
            found = usual(*args)
            amount = found[0].amount + change
            return [msgspec.structs.replace(found[0], amount=amount), *found[1:]]

        with monkeypatch.context() as other:
            other.setattr(choosing, "budgets", changed)
            output = prepare(folder, tmp_path / name)
        (message,) = problems(output)
        assert message.startswith("source web: ")
        assert "are taken in the last epoch" in message


def test_a_document_of_the_validation_split_in_the_training_split_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(order, "HOLD_OUT", 9)
        output = prepare(folder, tmp_path / "o")
    assert any("that row is not a document of train" in message for message in problems(output))


def test_epochs_that_differ_by_two_are_a_problem() -> None:
    check = ChoiceCheck("web")
    rows, keys = np.arange(3), np.array([1, 2, 3], np.uint64)
    check.note("a", rows, keys, np.array([1, 1, 1]), np.array([5, 5, 5]))
    assert not list(check.problems())
    check.note("b", rows, keys, np.array([3, 3, 3]), np.array([5, 5, 5]))
    (problem,) = check.problems()
    assert "differ by more than one" in problem.message


def test_the_keys_of_copies_come_document_by_document_in_order() -> None:
    keys, copies = np.array([900, 5], np.uint64), np.array([3, 1])
    expected = sorted(int(epochs.copy_keys(keys[:1], copy)[0]) for copy in range(3))
    assert copies_in_order(keys, copies).tolist() == [*expected, 5]
    assert copies_in_order(keys[:0], copies[:0]).tolist() == []
