"""Splits by the names of files: a test split that a folder holds must not become training data.

A file belongs to a split if its name begins with the split's name (`test-00000.parquet`), or if a
folder below the input has that name (`test/data.arrow`). The words are those of `datasets`. Only
folders and globs are looked at: a file that is named by the user is what the user wants.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tokenmill.errors import InputError, UsageError, did_you_mean
from tokenmill.inputs.listing import SkippedFile

WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLITS = {word: split for split, words in WORDS.items() for word in words}
_BEGINS = re.compile(rf"({'|'.join(sorted(_SPLITS, key=len, reverse=True))})(?![a-z])")
DATASET_DICT = "dataset_dict.json"  # what DatasetDict.save_to_disk writes: the names of its splits


class SplitChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which splits of a folder or glob are wanted."""

    split: str = ""  # only this one
    all_splits: bool = False  # mixed on purpose
    by_name: bool = False  # `--val split`: train for train, validation for val
    val_inputs: bool = False  # the validation split is named apart

    @property
    def wanted(self) -> tuple[str, ...]:
        """The splits that are taken; empty: no choice was made."""
        if self.by_name:
            return ("train",) if self.val_inputs else ("train", "validation")
        return (split_named(self.split),) if self.split else ()


class InputFiles(NamedTuple):
    """The files that one argument means."""

    argument: str
    files: list[str]
    below: list[str]  # each file's path below the argument
    searched: bool  # a folder or a glob: its files are not named one by one
    splits: tuple[str, ...] = ()  # names of folders that a DatasetDict names as its splits

    def without(self, taken: set[str]) -> InputFiles:
        kept = [pair for pair in zip(self.files, self.below, strict=True) if pair[0] not in taken]
        return self._replace(files=[f for f, _ in kept], below=[b for _, b in kept])

    def split_of(self, below: str) -> str:
        *folders, name = below.split("/")
        if found := _BEGINS.match(name.lower()):
            return _SPLITS[found[1]]
        for folder in reversed(folders):
            if folder.lower() in _SPLITS or folder in self.splits:
                return split_named(folder)
        return ""


def split_named(name: str) -> str:
    """`val`, `dev` and `valid` are `validation`; a name that is not one of ours is itself."""
    return _SPLITS.get(name.lower(), name)


def named_splits(folder: str) -> tuple[str, ...]:
    """The splits of a DatasetDict that was saved in a folder."""
    try:
        with open(os.path.join(folder, DATASET_DICT), "rb") as file:
            return tuple(map(str, msgspec.json.decode(file.read())["splits"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def choose_splits(
    found: Sequence[InputFiles], choice: SplitChoice, skipped: list[SkippedFile]
) -> tuple[list[str], list[str]]:
    """The files for train and for val, in order. Two splits in one folder or glob are refused
    unless the choice says what to do with them."""
    sides: tuple[list[str], list[str]] = ([], [])
    chosen = 0
    for one in found:
        splits = [one.split_of(below) for below in one.below]
        names = dict.fromkeys(name for name in splits if name)
        by_name = choice.by_name and not choice.val_inputs
        if not one.searched and not by_name:
            sides[0].extend(one.files)
            continue
        if not choice.wanted:
            if len(names) > 1 and not choice.all_splits:
                raise two_splits(one.argument, list(names))
            sides[0].extend(one.files)
            continue
        for file, split in zip(one.files, splits, strict=True):
            if split in choice.wanted:
                sides[by_name and split == "validation"].append(file)
                chosen += 1
            elif not one.searched or (by_name and not split):
                raise InputError(
                    f"{file}: --val split: its name does not say whether it is train or validation",
                    hint="name the files of the validation split with --val-inputs",
                )
            else:
                reason = f"of the {split} split" if split else "of no split"
                skipped.append(SkippedFile(file, f"{reason}, which is not asked for"))
    _refuse_missing(found, choice, sides, chosen)
    return sides


def _refuse_missing(
    found: Sequence[InputFiles],
    choice: SplitChoice,
    sides: tuple[list[str], list[str]],
    chosen: int,
) -> None:
    there = dict.fromkeys(one.split_of(below) for one in found for below in one.below)
    names = ", ".join(filter(None, there)) or "none"
    if choice.split and not chosen:
        raise InputError(
            f"--split {choice.split}: no folder or glob among the inputs has files of this split",
            hint=f"{did_you_mean(choice.split, [*filter(None, there), *_SPLITS])}the file names "
            f"show these splits: {names}",
        )
    if choice.by_name and not choice.val_inputs:
        for side, name in zip(sides, ("train", "validation"), strict=True):
            if not side:
                raise InputError(
                    f"--val split: no input is of the {name} split (there are: {names})",
                    hint="name the files of the validation split with --val-inputs",
                )


def two_splits(where: str, names: Sequence[str]) -> InputError:
    one = "train" if "train" in names else names[0]
    return InputError(
        f"{where}: holds {len(names)} splits ({', '.join(names)}), which would be mixed",
        hint=f"--split {one} takes one of them. --val split takes train for training and "
        "validation for the validation split. --val-inputs FILES names other files for the "
        "validation split. --all-splits mixes them on purpose",
    )


def check_choice(choice: SplitChoice) -> None:
    """Options that contradict each other."""
    if choice.split and (choice.all_splits or choice.by_name):
        other = "--all-splits" if choice.all_splits else "--val split"
        raise UsageError(
            f"--split {choice.split} contradicts {other}", hint="leave one of them out"
        )
    if choice.by_name and choice.all_splits:
        raise UsageError("--val split contradicts --all-splits", hint="leave one of them out")
