"""Arguments to files: each test lays out a folder and says which files are taken, and why not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import InputError
from tokenmill.inputs.listing import RealPaths, SkippedFile, expand, refuse_twice


def lay_out(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def listed(folder: Path, argument: str = "") -> tuple[list[str], dict[str, str]]:
    """Files taken and files passed over with the reason, as seen from the folder."""
    skipped: list[SkippedFile] = []
    files = expand(os.path.join(folder, argument).rstrip("/"), skipped)
    assert files == sorted(files, key=os.fsencode)
    assert all(map(os.path.isabs, files))
    return (
        [os.path.relpath(path, folder) for path in files],
        {os.path.relpath(one.path, folder): one.reason for one in skipped},
    )


# --- folders ---------------------------------------------------------------------------------


def test_a_folder_is_all_files_below_it_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    lay_out(tmp_path, "b.txt", "a/z.txt", "a.txt", "B.txt", "ä.txt", "a/deep/er/x.jsonl")
    files, skipped = listed(tmp_path)
    assert files == ["B.txt", "a.txt", "a/deep/er/x.jsonl", "a/z.txt", "b.txt", "ä.txt"]
    assert skipped == {}


def test_a_file_is_itself_whatever_its_name(tmp_path: Path) -> None:
    lay_out(tmp_path, ".hidden.txt", "_x.txt", "state.json", "y.incomplete", "a[1].txt")
    for name in os.listdir(tmp_path):
        assert listed(tmp_path, name) == ([name], {})


def test_what_searching_passes_over_and_why(tmp_path: Path) -> None:
    lay_out(
        tmp_path, "a.txt", ".b.txt", "_c.txt", "d.arrow.incomplete", ".git/x.txt", "_tmp/y.txt",
        "cache-1.arrow", "indices.arrow", "state.json", "dataset_info.json", "x.lock",
    )  # fmt: skip
    files, skipped = listed(tmp_path)
    assert files == ["a.txt"]
    assert skipped == {
        ".b.txt": "hidden",
        ".git": "hidden",
        "_c.txt": "starts with an underscore",
        "_tmp": "starts with an underscore",
        "d.arrow.incomplete": "unfinished: datasets did not complete it",
        "cache-1.arrow": "a cache of datasets.map",
        "indices.arrow": "indices of datasets",
        "state.json": "bookkeeping of datasets",
        "dataset_info.json": "bookkeeping of datasets",
        "x.lock": "a lock",
    }


def test_a_link_to_a_folder_is_passed_over_and_one_to_a_file_is_not(tmp_path: Path) -> None:
    lay_out(tmp_path, "in/a.txt", "elsewhere/b.txt")
    (tmp_path / "in/folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/file.txt").symlink_to(tmp_path / "elsewhere/b.txt")
    files, skipped = listed(tmp_path, "in")
    assert files == ["in/a.txt", "in/file.txt"]
    assert skipped == {"in/folder": "a link to a folder"}


@pytest.mark.parametrize("names", [[], ["_x.txt"], [".x.txt", "_y/a.txt", "state.json"]])
def test_a_folder_without_a_file_to_read_is_an_error(tmp_path: Path, names: list[str]) -> None:
    lay_out(tmp_path, *names)
    with pytest.raises(InputError, match="no input files in this directory"):
        listed(tmp_path)


def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path, "a.txt", "closed/b.txt")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match="closed: cannot be listed: Permission denied"):
        listed(tmp_path)


# --- datasets of ours ------------------------------------------------------------------------

FINISHED = ("manifest.json", "index/pieces")
UNFINISHED = (".tokenmill/plan.json",)


@pytest.mark.parametrize("marks", [FINISHED, UNFINISHED])
def test_a_dataset_of_ours_is_refused_by_name_and_skipped_by_search(
    tmp_path: Path, marks: tuple[str, ...]
) -> None:
    lay_out(tmp_path, "a.txt", "out/train.txt", *(f"out/{mark}" for mark in marks))
    with pytest.raises(InputError, match="a dataset of tokenmill, which holds tokens, not text"):
        listed(tmp_path, "out")
    for argument in ("", "*"):
        files, skipped = listed(tmp_path, argument)
        assert files == ["a.txt"]
        assert skipped == {"out": "a dataset of tokenmill"}


def test_half_of_the_marks_of_a_dataset_make_none(tmp_path: Path) -> None:
    lay_out(tmp_path, "out/manifest.json", "out/a.txt")
    assert listed(tmp_path)[0] == ["out/a.txt", "out/manifest.json"]


# --- patterns --------------------------------------------------------------------------------


def test_a_pattern_takes_what_matches_and_folders_with_all_below_them(tmp_path: Path) -> None:
    lay_out(tmp_path, "a.txt", "b.jsonl", "part1/x.txt", "part1/y/z.txt", "part2/w.txt")
    assert listed(tmp_path, "*.txt")[0] == ["a.txt"]
    assert listed(tmp_path, "part*")[0] == ["part1/x.txt", "part1/y/z.txt", "part2/w.txt"]
    assert listed(tmp_path, "**/*.txt")[0] == [
        "a.txt", "part1/x.txt", "part1/y/z.txt", "part2/w.txt",
    ]  # fmt: skip


def test_a_hidden_folder_that_the_user_names_is_searched(tmp_path: Path) -> None:
    lay_out(tmp_path, ".cache/a.txt", ".cache/_b.txt")
    files, skipped = listed(tmp_path, ".cache/*.txt")
    assert files == [".cache/a.txt"]
    assert skipped == {".cache/_b.txt": "starts with an underscore"}
    with pytest.raises(InputError, match="no file matches"):
        listed(tmp_path, "*/a.txt")


def test_a_pattern_of_which_nothing_is_left_is_an_error(tmp_path: Path) -> None:
    lay_out(tmp_path, "state.json", "b.txt")
    with pytest.raises(
        InputError, match=r"every file that matches is skipped \(bookkeeping of datasets"
    ):
        listed(tmp_path, "*.json")
    with pytest.raises(InputError, match="no file matches"):
        listed(tmp_path, "*.parquet")
    with pytest.raises(InputError, match="no such file or directory"):
        listed(tmp_path, "nothing.txt")


# --- folders that datasets wrote -------------------------------------------------------------


def save(folder: Path, *files: str, **more: object) -> None:
    entries = [{"filename": name} for name in files]
    (folder / "state.json").write_text(json.dumps({"_data_files": entries, **more}))


def test_of_a_saved_dataset_only_the_files_that_it_names_are_taken(tmp_path: Path) -> None:
    names = ("data-0.arrow", "data-1.arrow", "cache-9.arrow", "old.arrow", "other.txt")
    lay_out(tmp_path, *names)
    save(tmp_path, "data-0.arrow", "cache-9.arrow")
    files, skipped = listed(tmp_path)
    assert files == ["cache-9.arrow", "data-0.arrow", "other.txt"]
    why = "not named in state.json: no part of the dataset"
    assert skipped == {
        "data-1.arrow": why,
        "old.arrow": why,
        "state.json": "bookkeeping of datasets",
    }


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"_data_files": 1}', '{"_data_files": [{}]}'])
def test_a_state_json_of_somebody_else_says_nothing(tmp_path: Path, state: str) -> None:
    lay_out(tmp_path, "data.arrow", "cache-1.arrow")
    (tmp_path / "state.json").write_text(state)
    files, skipped = listed(tmp_path)
    assert files == ["data.arrow"]
    assert skipped["cache-1.arrow"] == "a cache of datasets.map"


@pytest.mark.parametrize("indices", ["_indices_files", "_indices_data_files"])
def test_a_saved_selection_of_rows_is_refused(tmp_path: Path, indices: str) -> None:
    lay_out(tmp_path, "data.arrow")
    save(tmp_path, "data.arrow", **{indices: [{"filename": "i.arrow"}]})
    with pytest.raises(InputError, match="a selection of the rows"):
        listed(tmp_path)


def test_a_saved_dataset_of_which_a_file_is_missing_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, "data-0.arrow")
    save(tmp_path, "data-0.arrow", "data-1.arrow")
    with pytest.raises(InputError, match=r"names data-1\.arrow, which is not there"):
        listed(tmp_path)


# --- twice -----------------------------------------------------------------------------------


def test_a_file_may_be_given_once_under_all_its_names(tmp_path: Path) -> None:
    lay_out(tmp_path, "a.txt", "b.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    first, second, link = (str(tmp_path / name) for name in ("a.txt", "b.txt", "link.txt"))
    refuse_twice([first, second], RealPaths())
    with pytest.raises(InputError, match=r"a\.txt: named twice\n"):
        refuse_twice([first, second, first], RealPaths())
    with pytest.raises(InputError, match=r"link\.txt: named twice \(also as .*a\.txt\)"):
        refuse_twice([first, link], RealPaths())


def test_real_paths_are_those_of_the_standard_library(tmp_path: Path) -> None:
    lay_out(tmp_path, "data/a.txt", "data/deep/b.txt")
    (tmp_path / "linked").symlink_to("data")
    (tmp_path / "data" / "deep" / "up").symlink_to("..")
    (tmp_path / "data" / "c.txt").symlink_to("deep/b.txt")
    (tmp_path / "data" / "gone.txt").symlink_to("nowhere/d.txt")
    real_path = RealPaths()
    for folder in ("data", "linked", "linked/deep/up", "data/deep/..", "linked/deep/../deep"):
        for name in ("a.txt", "c.txt", "gone.txt", "missing.txt", "deep/b.txt", "deep", ".", ""):
            path = os.path.join(tmp_path, folder, name)
            assert real_path(path) == os.path.realpath(path), path


# --- any tree --------------------------------------------------------------------------------

PARTS = st.sampled_from(["a", "b.txt", ".h", "_u", "x.lock", "c.incomplete", "state.json"])


@given(st.sets(st.lists(PARTS, min_size=1, max_size=3).map("/".join), max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_file_of_any_tree_is_taken_or_passed_over_with_a_reason(
    tmp_path_factory: pytest.TempPathFactory, names: set[str]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for name in sorted(names):
        if (
            not any((folder / parent).is_file() for parent in Path(name).parents)
            and not (folder / name).exists()
        ):
            lay_out(folder, name)
    every = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    lay_out(folder, "always.txt")
    files, skipped = listed(folder)
    assert len(files) == len(set(files))
    below = {f for f in every for s in skipped if f == s or f.startswith(s + "/")}
    assert set(files) | below == every | {"always.txt"}
    assert not set(files) & below
    assert all(skipped.values())
    assert {f for f in every if set(f.split("/")) <= {"a", "b.txt"}} <= set(files)
