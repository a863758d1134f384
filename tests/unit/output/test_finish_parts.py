"""`finish` in parts, without processes: files made by several machines, each once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cases import quick
from support.parts import job_of, write_inputs

import tokenmill
from reliability.corpus import dataset_bytes
from tokenmill import finishing, pipeline
from tokenmill.dataset.status import status
from tokenmill.errors import RefusedError, UsageError
from tokenmill.output.file_maker import FileTask
from tokenmill.output.file_tasks import FileWorker
from tokenmill.output.finish import file_list
from tokenmill.output.journal import framed

PARTS = 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEASE_BYTES": "2500", "RANGE_BYTES": "2000", "MAX_RUNS": "4"}.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all files, in the order in which workers make them."""
    names: list[str] = []
    make = FileWorker.make

    def noting(worker: FileWorker, task: FileTask, *more: Any) -> Any:
        names.append(task.working)
        return make(worker, task, *more)

    monkeypatch.setattr(FileWorker, "make", noting)
    return names


def begun(job: str, folder: Path, **more: Any) -> tuple[Path, dict[str, Any]]:
    """A job whose units are all recorded; and what one run makes of it."""
    given, options = job_of(job, write_inputs(folder / "in"))
    options |= more
    pipeline.prepare(given, folder / "one", workers=0, **options)
    pipeline.prepare(given, folder / "out", workers=0, part="0/1", **options)
    return folder / "out", dataset_bytes(folder / "one")


def finish(output: Path, part: str = "") -> Any:
    return finishing.finish(output, workers=0, part=part)


@pytest.mark.parametrize(
    "job",
    quick(("llmc", "mds", "llmc,hf,parquet", "nanogpt", "shuffled", "mixed"), "llmc,hf,parquet"),
)
def test_three_parts_make_each_file_once_and_finish_takes_them_over(
    job: str, tmp_path: Path, made: list[str]
) -> None:
    more = {"format": job, "shard_tokens": 900} if "," in job else {}
    output, wanted = begun("llmc" if more else job, tmp_path, **more)
    made.clear()
    told = [finish(output, f"{number}/{PARTS}").run for number in (2, 0, 1)]
    assert len(made) == len(set(made)) == told[0]["files_in_all"]
    assert sum(one["files"] for one in told) == len(made)
    assert not (output / "manifest.json").exists()
    again = finish(output, f"0/{PARTS}")
    assert (again.already_done, again.run["files_made"]) == (True, 0)
    made.clear()
    assert not finish(output).already_done
    assert made == []
    assert dataset_bytes(output) == wanted
    assert not list(output.glob(".*"))
    assert finish(output, f"1/{PARTS}").already_done


def test_finish_makes_what_parts_have_not_made_or_what_is_damaged(
    tmp_path: Path, made: list[str]
) -> None:
    output, wanted = begun("llmc", tmp_path)
    made.clear()
    finish(output, f"1/{PARTS}")
    of_part = list(made)
    damaged, gone, *rest = of_part
    content = (output / damaged).read_bytes()
    (output / damaged).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (output / gone).unlink()
    finish(output)
    again = made[len(of_part) :]
    assert {damaged, gone} <= set(again)
    assert not set(rest) & set(again)
    assert dataset_bytes(output) == wanted


def test_what_two_machines_noted_of_a_file_is_compared_with_the_file(
    tmp_path: Path, made: list[str]
) -> None:
    """One of them had a library that writes other bytes: the file decides which note is true."""
    output, wanted = begun("mds", tmp_path)  # its checksums are those of its makers
    finish(output, "0/1")
    notes = output / ".tokenmill/files/made-by-parts"
    content = next(iter(notes.iterdir())).read_bytes()
    header = content[: content.index(b"\n", 40) + 1]
    for name, digest in (("0" * 32, 1), ("f" * 32, 2)):
        other = (made[-1], [[(output / made[-1]).stat().st_size, digest]], {})
        (notes / name).write_bytes(header + framed(msgspec.msgpack.encode(other)))
    made.clear()
    finish(output)
    assert made == []
    assert dataset_bytes(output) == wanted


def test_a_part_of_finish_needs_all_units(tmp_path: Path) -> None:
    given, options = job_of("llmc", write_inputs(tmp_path / "in"))
    output = tmp_path / "out"
    pipeline.prepare(given, output, workers=0, part="0/2", **options)
    with pytest.raises(RefusedError, match="leases are not complete"):
        finish(output, "0/3")
    assert not (output / ".tokenmill/driver").exists()
    with pytest.raises(UsageError, match="3 is not below 3"):
        finish(output, "3/3")
    with pytest.raises(UsageError, match="no job in parts was begun here"):
        finish(tmp_path / "in", "0/3")


def test_a_machine_with_other_versions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, _ = begun("llmc", tmp_path)
    finish(output, "0/3")
    monkeypatch.setattr(file_list, "package_versions", lambda: {"tokenmill": "9", "pyarrow": "1"})
    with pytest.raises(RefusedError, match=r"tokenmill 9 instead of .*, pyarrow 1 instead of"):
        finish(output, "1/3")
    assert status(output).finish_parts[1].state == "stopped"


def test_a_damaged_list_of_files_is_made_again(tmp_path: Path) -> None:
    output, wanted = begun("llmc", tmp_path)
    finish(output, "0/3")
    tasks = output / ".tokenmill/files/tasks"
    content = tasks.read_bytes()
    tasks.write_bytes(content[:-9])
    finish(output, "1/3")
    assert tasks.read_bytes() == content
    finish(output)
    assert dataset_bytes(output) == wanted


def test_status_shows_the_files_of_each_part_of_finish(tmp_path: Path) -> None:
    output, _ = begun("llmc", tmp_path)
    assert (status(output).files_to_make, status(output).finish_parts) == (0, [])
    finish(output, "1/3")
    found = status(output)
    assert [part.state for part in found.finish_parts] == ["", "done", ""]
    shares = [(part.files_made, part.files) for part in found.finish_parts]
    assert shares[1][0] == shares[1][1] == found.files_made
    assert sum(files for _, files in shares) == found.files_to_make
    assert not shares[0][0]
    from tokenmill.cli.status_report import status_lines

    told = "\n".join(status_lines(found, ""))
    assert f"files     {found.files_made} of {found.files_to_make} made" in told
    assert "0/3       0 of" in told
    assert "not begun" in told


def test_a_part_that_finds_the_job_finished_while_it_works_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`finish` of another machine has removed what the files are made of."""
    output, wanted = begun("llmc", tmp_path)
    make = FileWorker.make

    def late(worker: FileWorker, *more: Any) -> Any:
        monkeypatch.setattr(FileWorker, "make", make)
        finish(output)
        return make(worker, *more)

    monkeypatch.setattr(FileWorker, "make", late)
    assert finish(output, "0/3").already_done
    assert dataset_bytes(output) == wanted
    assert not (output / ".tokenmill").exists()


def test_a_part_waits_for_another_machine_that_gives_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, _ = begun("llmc", tmp_path)
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "1.2")
    from tokenmill.output.objects.opening import open_workspace
    from tokenmill.output.objects.workspace import ObjectWorkspace

    workspace = open_workspace(output, shared=True)
    assert isinstance(workspace, ObjectWorkspace)
    lease = workspace.lock()
    waited: list[float] = []
    sleep = time.sleep

    def look(seconds: float) -> None:
        if seconds == finishing.WAIT_SECONDS:
            waited.append(seconds)
            lease.release()
        sleep(0.05)

    monkeypatch.setattr(time, "sleep", look)
    assert finish(output, "0/3").run["files_made"]
    assert waited


def test_python_has_parts_of_finish_too(tmp_path: Path) -> None:
    output, wanted = begun("llmc", tmp_path)
    result = tokenmill.finish(output, part="0/2", workers=0, quiet=True)
    assert (result.part, result.manifest.files) == ("0/2", [])
    assert msgspec.to_builtins(result.run).keys() == {"files", "files_made", "files_in_all"}
    tokenmill.finish(output, workers=0, quiet=True)
    assert dataset_bytes(output) == wanted
