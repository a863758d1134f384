"""Splits by the names of files: a test split never goes into training in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from support.commands import command
from support.inputs import write_jsonl

import tokenmill
from tokenmill.errors import InputError, TokenmillError, UsageError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.split_names import InputFiles, SplitChoice

TRAIN = ["a train text", "and another train text"]
VALIDATION = ["a validation text"]
TEST = ["a test text", "more test text"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    write_jsonl(data / "train-0.jsonl", TRAIN)
    write_jsonl(data / "validation-0.jsonl", VALIDATION)
    write_jsonl(data / "test-0.jsonl", TEST)
    return data


def split_counts(output: Path) -> dict[str, int]:
    manifest = tokenmill.open_dataset(output).manifest
    return {split.name: split.documents for split in manifest.splits}


def names(*inputs: object, **choice: Any) -> tuple[list[str], list[str]]:
    held = choice.pop("val_inputs", ())
    wanted = SplitChoice(**choice, val_inputs=bool(held))
    rules = InputRules(choice=wanted, val_inputs=tuple(held))
    found = find_sources([str(i) for i in inputs], "text", rules=rules)
    return (
        [source.name for source in found.sources if not source.split],
        [source.name for source in found.sources if source.split == "val"],
    )


@pytest.mark.parametrize(
    ("below", "split"),
    [
        ("train-00000.parquet", "train"),
        ("Train.jsonl", "train"),
        ("train0.txt", "train"),
        ("training_1.txt", "train"),
        ("val.txt", "validation"),
        ("dev-1.txt", "validation"),
        ("valid.txt", "validation"),
        ("test.parquet", "test"),
        ("eval.jsonl", "test"),
        ("test/data-0.arrow", "test"),
        ("a/dev/b/data.arrow", "validation"),
        ("test/train-0.parquet", "train"),
        ("trainer.txt", ""),
        ("tests.txt", ""),
        ("my-test.txt", ""),
        ("tests/data.txt", ""),
        ("data.txt", ""),
    ],
)
def test_the_split_that_a_name_says(below: str, split: str) -> None:
    assert InputFiles("", [], [], True).split_of(below) == split


@pytest.mark.parametrize("argument", ["", "*.jsonl", "t*-*.jsonl"])
def test_a_folder_or_a_glob_of_two_splits_is_refused(folder: Path, argument: str) -> None:
    with pytest.raises(InputError, match=r"splits .*train.* mixed") as refused:
        names(folder / argument)
    for way in ("--split ", "--val split", "--val-inputs", "--all-splits"):
        assert way in refused.value.hint


def test_files_that_are_named_are_never_refused(folder: Path) -> None:
    given = [folder / "train-0.jsonl", folder / "test-0.jsonl"]
    assert names(*given) == (["train-0.jsonl", "test-0.jsonl"], [])


def test_folders_of_splits_and_folders_that_are_named_apart(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        write_jsonl(tmp_path / split / "data.jsonl", TRAIN)
    with pytest.raises(InputError, match="2 splits"):
        names(tmp_path)
    assert names(tmp_path / "train", tmp_path / "test")[0] == [
        "train/data.jsonl",
        "test/data.jsonl",
    ]
    assert names(tmp_path, split="train")[0] == ["data.jsonl"]


def test_one_split_is_picked_and_the_others_are_listed(folder: Path) -> None:
    assert names(folder, split="train") == (["train-0.jsonl"], [])
    assert names(folder, split="val") == (["validation-0.jsonl"], [])
    found = find_sources([folder], "text", rules=InputRules(choice=SplitChoice(split="train")))
    assert {Path(one.path).name: one.reason for one in found.skipped} == {
        "test-0.jsonl": "of the test split, which is not asked for",
        "validation-0.jsonl": "of the validation split, which is not asked for",
    }
    with pytest.raises(InputError, match="--split other"):
        names(folder, split="other")


def test_all_splits_on_purpose(folder: Path) -> None:
    assert len(names(folder, all_splits=True)[0]) == 3


def test_val_split_takes_train_and_validation(folder: Path) -> None:
    assert names(folder, by_name=True) == (["train-0.jsonl"], ["validation-0.jsonl"])
    (folder / "validation-0.jsonl").unlink()
    with pytest.raises(InputError, match="no input is of the validation split") as refused:
        names(folder, by_name=True)
    assert "--val-inputs" in refused.value.hint


def test_val_split_refuses_a_file_of_no_split(folder: Path) -> None:
    write_jsonl(folder / "more.jsonl", TRAIN)
    with pytest.raises(InputError, match=r"more\.jsonl"):
        names(folder, by_name=True)


def test_val_inputs_are_taken_out_of_the_inputs(folder: Path) -> None:
    held = [str(folder / "test-*.jsonl")]
    (folder / "validation-0.jsonl").unlink()
    assert names(folder, val_inputs=held) == (["train-0.jsonl"], ["test-0.jsonl"])
    with pytest.raises(InputError, match="twice"):
        names(folder / "test-0.jsonl", folder / "train-0.jsonl", val_inputs=held)
    with pytest.raises(InputError, match="nothing is left"):
        names(folder / "t*.jsonl", val_inputs=[str(folder / "t*-0.jsonl")], all_splits=True)


def test_val_inputs_leave_no_leak_in_the_rest(folder: Path) -> None:
    with pytest.raises(InputError, match="2 splits"):
        names(folder, val_inputs=[str(folder / "validation-0.jsonl")])
    picked = names(folder, by_name=True, val_inputs=[str(folder / "validation-0.jsonl")])
    assert picked == (["train-0.jsonl"], ["validation-0.jsonl"])


@pytest.mark.parametrize("form", ["llmc", "nanogpt", "megatron", "mds"])
def test_a_dataset_of_named_splits_and_its_proof(folder: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    tokenmill.prepare(folder, out, val="split", workers=0, format=form)
    assert split_counts(out) == {"train": 2, "val": 1}
    report = tokenmill.verify_deep(out, sample="all")
    assert report.ok
    assert report.complete
    assert tokenmill.prepare(folder, out, val="split", workers=0, format=form).already_done
    with pytest.raises(TokenmillError, match="val: split -> none"):
        tokenmill.prepare(folder, out, val="none", all_splits=True, workers=0, format=form)


def test_the_same_files_in_other_roles_are_another_job(folder: Path, tmp_path: Path) -> None:
    one, other = folder / "train-0.jsonl", folder / "test-0.jsonl"
    tokenmill.prepare(one, tmp_path / "o", val_inputs=other, workers=0)
    with pytest.raises(TokenmillError, match=r"test-0\.jsonl|order"):
        tokenmill.prepare(other, tmp_path / "o", val_inputs=[one], workers=0)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    done = command("prepare", folder, "-o", tmp_path / "o", "--workers", 0)
    assert done.returncode == 2
    assert "--split train" in done.stderr
    more = ("--val-inputs", folder / "validation-0.jsonl", "--val-inputs", folder / "test-0.jsonl")
    done = command("prepare", folder, "-o", tmp_path / "o", "--workers", 0, *more)
    assert done.returncode == 0, done.stderr
    assert split_counts(tmp_path / "o") == {"train": 2, "val": 3}


@pytest.mark.parametrize(
    "options",
    [
        {"split": "train", "all_splits": True},
        {"split": "train", "val": "split"},
        {"all_splits": True, "val": "split"},
        {"val_inputs": "x", "val": "0.1"},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UsageError, match="contradicts"):
        tokenmill.prepare(folder, folder / "o", workers=0, **options)


# --- datasets --------------------------------------------------------------------------------


@pytest.fixture
def splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> datasets.DatasetDict:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parts = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in parts.items()}
    )


def test_a_dict_of_datasets(splits: datasets.DatasetDict, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 splits") as refused:
        tokenmill.prepare(splits, tmp_path / "o", workers=0)
    assert "split='train'" in refused.value.hint
    tokenmill.prepare(splits, tmp_path / "1", workers=0, split="train", val="none")
    assert split_counts(tmp_path / "1") == {"train": 2}
    tokenmill.prepare(splits, tmp_path / "2", workers=0, val="split")
    assert split_counts(tmp_path / "2") == {"train": 2, "val": 1}
    tokenmill.prepare(splits, tmp_path / "3", workers=0, all_splits=True, val="none")
    assert split_counts(tmp_path / "3") == {"train": 5}
    with pytest.raises(UsageError, match="no split 'other'"):
        tokenmill.prepare(splits, tmp_path / "o", workers=0, split="other")


def test_a_saved_dict_of_datasets(splits: datasets.DatasetDict, tmp_path: Path) -> None:
    splits["english"] = splits.pop("test")
    splits.save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match="3 splits"):
        names(tmp_path / "saved")
    assert len(names(tmp_path / "saved", split="english")[0]) == 1
    train, held = names(tmp_path / "saved", by_name=True)
    assert [Path(name).parts[0] for name in (*train, *held)] == ["train", "validation"]
