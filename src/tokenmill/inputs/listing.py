"""Arguments to the paths of files: directories, globs, and what is passed over, with the reason.

A folder that `datasets` wrote is known by its state.json: its bookkeeping and the caches of `map`
are no input, and only the files that state.json names are the dataset.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from tokenmill.errors import InputError

# What `datasets` keeps beside its data.
BOOKKEEPING = {
    "state.json": "bookkeeping of datasets",
    "dataset_info.json": "bookkeeping of datasets",
    "dataset_dict.json": "bookkeeping of datasets",
    "cache-*.arrow": "a cache of datasets.map",
    "indices*.arrow": "indices of datasets",
    "*.lock": "a lock",
}
OURS = "a dataset of tokenmill"


class SkippedFile(msgspec.Struct, frozen=True):
    path: str
    reason: str


def decodable(path: str) -> str:
    """A path that can be printed and put into JSON, whatever bytes it is made of."""
    return os.fsencode(path).decode(errors="backslashreplace")


def expand(argument: str, skipped: list[SkippedFile]) -> list[str]:
    """One argument to absolute paths of files."""
    if os.path.isdir(argument):
        if _is_dataset(argument):
            raise InputError(
                f"{argument}: {OURS}, which holds tokens, not text",
                hint="`tokenmill export` converts it to another format",
            )
        files = _without_bookkeeping(_walk(argument, skipped), skipped)
        if not files:
            raise InputError(f"{argument}: no input files in this directory")
        return files
    if os.path.exists(argument):
        return [os.path.abspath(argument)]
    if glob.has_magic(argument):
        matches = _expand_glob(argument, skipped)
        files = _without_bookkeeping(matches, skipped)
        if matches and not files:
            raise InputError(
                f"{argument}: every file that matches is skipped ({skipped[-1].reason})",
                hint="a file that is named without a pattern is never skipped",
            )
        if not files:
            raise InputError(
                f"{argument}: no file matches", hint="check the pattern; an empty glob is an error"
            )
        return files
    if argument == "-":
        raise InputError("-: only `prepare` reads standard input", hint="write it to a file")
    hint = ""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", argument):
        hint = f"a dataset on the Hub is hf://datasets/{argument}"
    raise InputError(f"{argument}: no such file or directory", hint=hint)


def base_of(argument: str) -> tuple[str, bool]:
    """The folder that an argument names, and whether files below it are found by searching."""
    if os.path.isdir(argument):
        return os.path.abspath(argument), True
    if os.path.exists(argument):
        return os.path.dirname(os.path.dirname(os.path.abspath(argument))), False
    parts = Path(argument).parts
    return os.path.abspath(os.path.join("", *parts[: _fixed_parts(argument)])), True


def _fixed_parts(pattern: str) -> int:
    """Leading components without magic: named by the user, hidden or not."""
    fixed = 0
    while not glob.has_magic(Path(pattern).parts[fixed]):
        fixed += 1
    return fixed


def _expand_glob(pattern: str, skipped: list[SkippedFile]) -> list[str]:
    fixed = _fixed_parts(pattern)
    files: list[str] = []
    # include_hidden, so that a skipped file is listed and not just absent
    for match in sorted(glob.glob(pattern, recursive=True, include_hidden=True), key=os.fsencode):
        reason = next(filter(None, map(_hidden, Path(match).parts[fixed:])), "")
        if os.path.isdir(match):
            if not reason and _is_dataset(match):
                skipped.append(SkippedFile(match, OURS))
            elif not reason and "**" not in pattern:
                files.extend(_walk(match, skipped))
        elif reason:
            skipped.append(SkippedFile(match, reason))
        else:
            files.append(os.path.abspath(match))
    return sorted(files, key=os.fsencode)


def _walk(directory: str, skipped: list[SkippedFile]) -> list[str]:
    found: list[str] = []

    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be listed: {error.strerror}")

    for folder, names, files in os.walk(directory, onerror=unreadable):
        for name in list(names):
            path = os.path.join(folder, name)
            if reason := _hidden(name) or (OURS if _is_dataset(path) else ""):
                skipped.append(SkippedFile(path, reason))
                names.remove(name)
            elif os.path.islink(path):  # os.walk does not follow it
                skipped.append(SkippedFile(path, "a link to a folder"))
        for name in files:
            path = os.path.join(folder, name)
            if reason := _hidden(name):
                skipped.append(SkippedFile(path, reason))
            else:
                found.append(os.path.abspath(path))
    return sorted(found, key=os.fsencode)


def _is_dataset(folder: str) -> bool:
    """Whether it is an output of ours, finished or not."""
    finished = ("manifest.json", "index/pieces")
    return all(os.path.isfile(os.path.join(folder, name)) for name in finished) or os.path.isfile(
        os.path.join(folder, ".tokenmill/plan.json")
    )


def _hidden(name: str) -> str:
    """Why a file found by searching is passed over; '' when it is not."""
    if name.startswith("."):
        return "hidden"
    if name.endswith(".incomplete"):
        return "unfinished: datasets did not complete it"
    return "starts with an underscore" if name.startswith("_") else ""


def _without_bookkeeping(files: list[str], skipped: list[SkippedFile]) -> list[str]:
    """What was found by searching, less what `datasets` keeps beside its data."""
    kept = []
    saved_files = functools.cache(_saved_files)
    for path in files:
        folder, name = os.path.split(path)
        named = saved_files(folder) if name.endswith(".arrow") else None
        if named is None:
            reason = next((why for p, why in BOOKKEEPING.items() if fnmatch.fnmatch(name, p)), "")
        else:
            reason = "" if name in named else "not named in state.json: no part of the dataset"
        if reason:
            skipped.append(SkippedFile(path, reason))
        else:
            kept.append(path)
    return kept


def _saved_files(folder: str) -> set[str] | None:
    """The data files that a folder's state.json names; None where there is no such list."""
    path = os.path.join(folder, "state.json")
    try:
        with open(path, "rb") as file:
            state = msgspec.json.decode(file.read())
        files = {entry["filename"] for entry in state["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not what save_to_disk writes
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise InputError(
            f"{path}: this dataset is a selection of the rows in its files (it names indices)",
            hint="load it, then dataset.flatten_indices().save_to_disk(...) to another folder",
        )
    for name in sorted(files):
        if not os.path.exists(os.path.join(folder, name)):
            raise InputError(
                f"{path}: names {name}, which is not there",
                hint="the folder is incomplete: copy or save it again",
            )
    return files


class RealPaths:
    """Where files really are. Links in the path of a folder are followed once for all its files."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        return os.path.join(self._folders[folder], name)


def refuse_twice(paths: list[str], real_path: Callable[[str], str]) -> None:
    seen: dict[str, str] = {}
    for path in paths:
        real = real_path(path)
        if real in seen:
            raise InputError(
                f"{path}: named twice" + (f" (also as {seen[real]})" if seen[real] != path else ""),
                hint="each file may be given once; a directory or glob may already include it",
            )
        seen[real] = path
