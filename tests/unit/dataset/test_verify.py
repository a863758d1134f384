"""`verify` finds whatever was changed, cut, swapped, removed or added.

Thousands of changes at random are row R9 of the scorecard.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.commands import command

import tokenmill
from tokenmill.dataset import verification
from tokenmill.errors import UsageError
from tokenmill.inputs import segments
from tokenmill.system.store import FolderStore


@pytest.fixture(scope="module", params=["nanogpt", "llmc"])
def dataset(
    request: pytest.FixtureRequest, inputs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("verify") / "o"
    extra = {"shard_tokens": "60k"} if request.param == "llmc" else {"val": 0.05}
    bad = out.parent / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": null}\n')
    tokenmill.prepare(
        [*inputs, bad], out, format=request.param, on_bad_row="quarantine", workers=0, **extra
    )
    return out


def files_of(dataset: Path) -> list[Path]:
    return [p for p in sorted(dataset.rglob("*")) if p.is_file() and p.name != "run.json"]


def test_an_untouched_dataset_is_fine(dataset: Path) -> None:
    report = tokenmill.verify(dataset)
    assert report.ok
    assert report.files == len(files_of(dataset)) - 1  # the manifest does not list itself


def test_missing_swapped_and_extra_files_are_found(dataset: Path, tmp_path: Path) -> None:
    tokens = [p for p in files_of(dataset) if p.suffix == ".bin"]
    for path in files_of(dataset):
        if path.name == "manifest.json":
            continue
        aside = path.rename(tmp_path / "aside")
        report = tokenmill.verify(dataset)
        assert not report.ok
        assert path.name in report.problems[0]
        shutil.move(aside, path)
    first, second = tokens[0].read_bytes(), tokens[1].read_bytes()
    tokens[0].write_bytes(second)
    tokens[1].write_bytes(first)
    assert not tokenmill.verify(dataset).ok
    tokens[0].write_bytes(first)
    tokens[1].write_bytes(second)
    assert tokenmill.verify(dataset).ok
    if len(tokens) > 2:  # shards: one more would be read by the trainer's glob
        extra = tokens[1].with_name("o_train_000099.bin")
        extra.write_bytes(b"\0" * 2048)
        report = tokenmill.verify(dataset)
        extra.unlink()
        assert any("not part of this dataset" in problem for problem in report.problems)


def test_a_change_is_located(dataset: Path) -> None:
    path = next(p for p in files_of(dataset) if "train" in p.name and p.suffix == ".bin")
    original = path.read_bytes()
    changed = bytearray(original)
    changed[-3] ^= 4
    path.write_bytes(changed)
    problem = tokenmill.verify(dataset).problems[0]
    path.write_bytes(original)
    assert problem.startswith(f"{path.name}: changed in bytes ")
    first, _, last = problem.rpartition("bytes ")[2].partition(" to ")
    assert int(first) <= len(original) - 3 <= int(last)


def test_small_pieces_are_read_together_and_a_change_is_located_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 64)  # a unit, and so a piece, of each line
    lines = "".join(f'{{"text": "line {i}"}}'.ljust(63) + "\n" for i in range(40))
    (tmp_path / "a.jsonl").write_text(lines)
    tokenmill.prepare(tmp_path / "a.jsonl", tmp_path / "o", val="none", workers=0)
    path, reads = tmp_path / "o" / "train.bin", []
    right = FolderStore.read
    monkeypatch.setattr(FolderStore, "read", lambda *args: reads.append(args[1]) or right(*args))
    assert tokenmill.verify(tmp_path / "o").ok
    assert reads.count("train.bin") == 1
    monkeypatch.setattr(verification, "TOGETHER_BYTES", 30)  # several pieces, then others
    original, found = path.read_bytes(), set[str]()
    for at in range(0, len(original), 2):
        path.write_bytes(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :])
        (problem,) = tokenmill.verify(tmp_path / "o").problems
        first, _, last = problem.rpartition("bytes ")[2].partition(" to ")
        assert int(first) <= at <= int(last)
        found.add(problem)
    assert len(found) == 40


def test_what_is_no_dataset_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, said in (
        ("none", "no such folder"),
        ("file", "is not a folder"),
        ("", "no manifest"),
    ):
        for call in (tokenmill.verify, tokenmill.open_dataset):
            with pytest.raises(UsageError, match=said):
                call(tmp_path / path)


def test_a_shard_that_became_a_link_out_of_the_folder_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"text": "document {i}"}}\n' for i in range(50)))
    out = tmp_path / "o"
    tokenmill.prepare(path, out, workers=0, val="docs:5")
    (out / "train.bin").rename(tmp_path / "elsewhere")
    (out / "train.bin").symlink_to(tmp_path / "elsewhere")
    report = tokenmill.verify(out)
    assert [line.split(",")[0] for line in report.problems] == [
        "train.bin: is a link to a file outside of the folder"
    ]
    (out / "train.bin").unlink()
    (tmp_path / "elsewhere").rename(out / "train.bin")
    assert tokenmill.verify(out).ok
    # A link to the folder, and a folder of links (the Hub's cache), are as good as the folder.
    (tmp_path / "link").symlink_to(out)
    assert tokenmill.verify(tmp_path / "link").ok
    (tmp_path / "view" / "index").mkdir(parents=True)
    for file in (one for one in out.rglob("*") if one.is_file()):
        (tmp_path / "view" / file.relative_to(out)).symlink_to(file)
    assert tokenmill.verify(tmp_path / "view").ok


@pytest.mark.parametrize("form", ["llmc", "nanogpt", "mds"])
def test_export_names_a_file_that_is_missing(form: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"text": "document {i}"}}\n' for i in range(50)))
    tokenmill.prepare(path, tmp_path / "o", workers=0, val="docs:5")
    (tmp_path / "o" / "val.bin").unlink()
    done = command("export", tmp_path / "o", "-o", tmp_path / "e", "--format", form)
    assert done.returncode == 3, done.stderr
    assert "val.bin: missing" in done.stderr
    assert not (tmp_path / "e").exists()
