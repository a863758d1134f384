"""Folders and objects of `datasets` just work; what would be guessed at is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import reference
from support.commands import token_bytes
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill.errors import BadRowError, InputError, RefusedError, UsageError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.hf_dataset import is_dataset
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.split_names import SplitChoice

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()
datasets.utils.tqdm.monitor_interval = 0  # no thread of its in the process that other tests fork
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are written: a folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenmill" / "datasets"


@pytest.fixture
def rows(texts: list[str]) -> dict[str, Any]:
    return {"id": list(range(60)), "text": texts[:60]}


def expected(texts: list[str], folder: Path) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    return reference.nanogpt([write_jsonl(folder / "expected.jsonl", texts)], fraction=0)


def skipped(folder: Path) -> dict[str, str]:
    found = find_sources([folder], "text")
    return {os.path.relpath(s.path, folder): s.reason for s in found.skipped}


# --- folders ---------------------------------------------------------------------------------


def test_a_folder_of_save_to_disk(rows: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict(rows).save_to_disk(folder, num_shards=3)
    datasets.load_from_disk(folder).map(lambda row: {"text": row["text"] + "!"})
    shutil.copy(folder / "data-00000-of-00003.arrow", folder / "data-00000-of-00009.arrow")
    result = tokenmill.prepare(folder, tmp_path / "o", val="none", workers=0)
    assert token_bytes(tmp_path / "o") == expected(rows["text"], tmp_path / "x")
    assert result.manifest.counts["rows"] == 60
    reasons = skipped(folder)
    cached = next(name for name in reasons if name.startswith("cache-"))
    assert reasons == {
        "state.json": "bookkeeping of datasets",
        "dataset_info.json": "bookkeeping of datasets",
        cached: "not named in state.json: no part of the dataset",
        "data-00000-of-00009.arrow": "not named in state.json: no part of the dataset",
    }
    # named, none is skipped
    assert len(find_sources([folder / cached], "text").sources) == 1
    with pytest.raises(InputError, match="every file that matches is skipped"):
        find_sources([folder / "cache-*.arrow"], "text")


def test_a_folder_of_a_dict_of_splits(rows: dict[str, Any], tmp_path: Path) -> None:
    one = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict({"train": one, "test": one.select(range(5))}).save_to_disk(tmp_path / "d")
    mix = InputRules(choice=SplitChoice(all_splits=True))
    mixed = find_sources([tmp_path / "d"], "text", rules=mix)
    names = [source.name for source in mixed.sources]
    assert names == ["test/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"]
    reasons = {Path(one.path).name: one.reason for one in mixed.skipped}
    assert reasons["dataset_dict.json"] == "bookkeeping of datasets"


def test_a_cache_folder(rows: dict[str, Any], tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", rows["text"])
    loaded = datasets.load_dataset(
        "parquet", data_files=str(path), cache_dir=str(tmp_path / "hub"), split="train"
    )
    loaded.map(lambda row: {"text": row["text"] + "!"})
    tokenmill.prepare(tmp_path / "hub", tmp_path / "o", val="none", workers=0)
    assert token_bytes(tmp_path / "o") == expected(rows["text"], tmp_path / "x")
    assert {"a cache of datasets.map", "bookkeeping of datasets", "a lock"} <= set(
        skipped(tmp_path / "hub").values()
    )
    tokenmill.prepare(loaded, tmp_path / "p", val="none", workers=0)
    assert token_bytes(tmp_path / "p") == token_bytes(tmp_path / "o")


def test_a_folder_with_indices_or_without_a_file_is_refused(
    rows: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    datasets.Dataset.from_dict(rows).save_to_disk(folder)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(
        json.dumps({**state, "_indices_files": [{"filename": "indices.arrow"}]})
    )
    for given in (folder, folder / "*.arrow"):
        with pytest.raises(InputError, match="names indices") as error:
            find_sources([given], "text")
        assert "flatten_indices" in error.value.hint
    state["_data_files"].append({"filename": "gone.arrow"})
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"names gone.arrow, which is not there"):
        find_sources([folder], "text")


# --- objects ---------------------------------------------------------------------------------


def sources_of(folder: Path) -> list[str]:
    return [s["path"] for s in json.loads((folder / "run.json").read_bytes())["sources"].values()]


def test_a_dataset_on_disk_is_read_from_its_own_files(
    rows: dict[str, Any], tmp_path: Path, cache: Path
) -> None:
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "d", num_shards=2)
    dataset = datasets.load_from_disk(tmp_path / "d")
    tokenmill.prepare(dataset, tmp_path / "o", val="none", workers=0)
    assert token_bytes(tmp_path / "o") == expected(rows["text"], tmp_path / "x")
    assert sources_of(tmp_path / "o") == [
        str(tmp_path / "d" / f"data-0000{i}-of-00002.arrow") for i in range(2)
    ]
    assert not cache.exists()
    mapped = dataset.map(lambda row: {"text": row["text"].upper()})
    tokenmill.prepare(mapped, tmp_path / "m", val="none", workers=0)
    assert not cache.exists()
    upper = [text.upper() for text in rows["text"]]
    assert token_bytes(tmp_path / "m") == expected(upper, tmp_path / "x")


CHANGES: dict[str, Any] = {
    "memory": lambda d: datasets.Dataset.from_dict(d[:]),
    "filtered": lambda d: d.filter(lambda row: row["id"] % 3 != 1),
    "selected": lambda d: d.select([5, 3, 3, 50]),
    "first ones": lambda d: d.select(range(10)),
    "shuffled": lambda d: d.shuffle(seed=7),
    "joined": lambda d: datasets.concatenate_datasets([d, d]),
    "joined parts": lambda d: datasets.concatenate_datasets(
        [d.select(range(30, 60)), d.select(range(30))]
    ),
    "other text, same ends": lambda d: d.remove_columns("text").add_column(
        "text", [d[0]["text"], *["other"] * 58, d[59]["text"]]
    ),
    "renamed": lambda d: d.rename_column("id", "n"),
    "less": lambda d: d.remove_columns("id"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_other_dataset_is_copied_once(
    change: str, rows: dict[str, Any], tmp_path: Path, cache: Path
) -> None:
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "d", num_shards=2)
    dataset = CHANGES[change](datasets.load_from_disk(tmp_path / "d"))
    tokenmill.prepare(dataset, tmp_path / "o", val="none", workers=0)
    assert token_bytes(tmp_path / "o") == expected(dataset["text"], tmp_path / "x")
    assert str(cache) in sources_of(tmp_path / "o")[0]
    assert list(cache.iterdir()) == []  # gone when the job is done
    assert tokenmill.prepare(dataset, tmp_path / "o", val="none", workers=0).already_done


def test_a_copy_stays_for_the_resume_and_goes_after_it(tmp_path: Path, cache: Path) -> None:
    dataset = datasets.Dataset.from_dict({"text": ["a", None, "b"], "more": [{"t": "x"}] * 3})
    with pytest.raises(BadRowError, match=r"text-[0-9a-f]+.arrow: row 1 \(record batch 0\): null"):
        tokenmill.prepare(dataset, tmp_path / "o", workers=0)
    (copy,) = cache.rglob("text-*.arrow")
    before = copy.stat()
    # damaged meanwhile: written again, the same
    copy.write_bytes(copy.read_bytes()[:-1])
    result = tokenmill.prepare(dataset, tmp_path / "o", workers=0, on_bad_row="quarantine")
    assert result.manifest.counts["quarantined"] == 1
    assert not copy.exists()
    assert before.st_mtime_ns == 10**18
    with pytest.raises(RefusedError):
        tokenmill.prepare(dataset.select([0]), tmp_path / "o", workers=0)
    assert list(cache.iterdir()) == []
    inner = tokenmill.prepare(dataset, tmp_path / "i", workers=0, text_column="more.t")
    assert inner.manifest.counts["documents"] == 3


def test_what_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path, cache: Path) -> None:
    dataset = datasets.Dataset.from_dict({"text": ["a"]})
    for given, message, hint in (
        (dataset.to_iterable_dataset(), "IterableDataset", "streaming"),
        ([dataset, dataset], "list of datasets", "concatenate_datasets"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            tokenmill.prepare(given, tmp_path / "o")
        assert hint in error.value.hint
    with pytest.raises(InputError, match="no column 'body'"):
        tokenmill.prepare(dataset, tmp_path / "o", text_column="body")
    with pytest.raises(UsageError, match="format"):
        tokenmill.prepare(dataset, tmp_path / "o", format="nothing")
    assert not cache.exists()
    assert not is_dataset("x")
    assert not is_dataset([Path("x")])


def test_a_deep_look_at_what_was_copied_says_why_there_is_nothing_to_compare_with(
    tmp_path: Path, cache: Path
) -> None:
    dataset = datasets.Dataset.from_dict({"text": ["one", "two", "three"]}).select([0, 2])
    tokenmill.prepare(dataset, tmp_path / "o", val="none", workers=0)
    with pytest.raises(InputError, match="was made from a `datasets") as caught:
        tokenmill.verify_deep(tmp_path / "o")
    assert "save_to_disk" in caught.value.hint
    assert str(cache) not in str(caught.value)
    assert tokenmill.verify(tmp_path / "o").ok
