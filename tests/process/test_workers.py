"""Workers that fail for good, that wait, that need too much; one failure is row R5.

Faults are real: processes are killed by signals, exit, segfault. They are planted under `fork`,
where a worker inherits the planted function; the supervisor is the same for every start method.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import dataset_bytes
from support.inputs import write_jsonl, write_parquet
from support.workers import Notes, clean, marked, plant  # noqa: F401

import tokenmill
from tokenmill.errors import TokenmillError
from tokenmill.settings import Reading


def test_a_panic_in_native_code_does_not_pass_for_the_end_of_the_work(
    marked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):  # as pyo3's: no Exception
        pass

    def panic() -> None:
        raise PanicException("from the depths")

    plant(monkeypatch, panic)
    with pytest.raises(TokenmillError, match="in a worker: PanicException: from the depths"):
        tokenmill.prepare(marked, tmp_path / "o", workers=2, start_method="fork")


def test_a_worker_does_without_huge_pages(
    marked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line() -> str:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return next((line for line in lines if line.startswith("THP_enabled")), "").expandtabs(1)

    if line() != "THP_enabled: 1":
        pytest.skip("this system has no huge pages to do without")

    def tell() -> None:
        raise ValueError(line())

    plant(monkeypatch, tell)
    with pytest.raises(TokenmillError, match="in a worker: ValueError: THP_enabled: 0"):
        tokenmill.prepare(marked, tmp_path / "o", workers=1, start_method="fork")
    assert line() == "THP_enabled: 1", "only in workers"


def test_a_failed_sync_is_an_error_and_nothing_behind_it_is_called_durable(
    marked: Path, clean: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.commands import durable_units

    from tokenmill.errors import StorageError
    from tokenmill.output.files import OutputFiles

    right, calls = OutputFiles.sync, []

    def sync(self: OutputFiles, name: str) -> None:
        calls.append(name)
        if len(calls) == 5:  # the kernel reports an error once; a second sync would succeed
            raise StorageError(f"{name}: cannot sync: Input/output error")
        right(self, name)

    monkeypatch.setenv("TOKENMILL_SYNC_SECONDS", "0.01")
    with monkeypatch.context() as patch:
        patch.setattr(OutputFiles, "sync", sync)
        with pytest.raises(StorageError, match="Input/output error"):
            tokenmill.prepare(marked, tmp_path / "o", workers=2)
    assert len(calls) == 5, "nothing is synced behind the failure"
    durable = durable_units(tmp_path / "o")
    result = tokenmill.prepare(marked, tmp_path / "o", workers=2)
    assert result.run["units_resumed"] == len(durable)
    assert dataset_bytes(tmp_path / "o") == clean


def test_too_little_memory_means_fewer_workers_and_says_so(
    inputs: list[Path], tmp_path: Path
) -> None:
    notes = Notes()
    tokenmill.prepare(inputs, tmp_path / "o", workers=8, memory="1GB", observer=notes)
    assert "2 workers instead of 8" in notes.lines[0]


def test_a_reader_that_skips_or_reads_a_giant_line_gives_signs_of_life(tmp_path: Path) -> None:
    from tokenmill.inputs.find import find_sources
    from tokenmill.inputs.kinds import read_segment
    from tokenmill.inputs.segments import Segment

    giant = write_jsonl(tmp_path / "a.jsonl", ["x" * (40 << 20), "y"])
    group = write_parquet(
        tmp_path / "b.parquet", ["some words here and there " * 400] * 4000, rows=4000
    )
    line_file, parquet_file = find_sources([str(giant), str(group)], "text").sources
    signs: list[int] = []

    def signs_before_first_batch(source: object, segment: Segment) -> int:
        signs.clear()
        next(read_segment(source, segment, Reading("text"), None, lambda: signs.append(1)), None)  # type: ignore[arg-type]
        return len(signs)

    size = giant.stat().st_size
    assert signs_before_first_batch(line_file, Segment(0, 0, 0, size, size)) >= 8
    assert signs_before_first_batch(line_file, Segment(0, 1, 16 << 20, size, size)) >= 5
    late = Segment(1, 1, 0, 1, 1, 30 << 20, -1)
    assert signs_before_first_batch(parquet_file, late) >= 5


def test_a_row_tried_alone_may_be_silent_for_a_shorter_time() -> None:
    from tokenmill.engines.local.processes import Worker
    from tokenmill.engines.messages import Activity

    worker = Worker(1, None, None)
    worker.note(Activity("encode", 0, 0, 100, 4_000_000))
    assert worker.patience(60) == 60
    worker.searching = True
    worker.note(Activity("encode", 0, 7, 1, 10_000))
    assert worker.patience(60) == 10
    worker.note(Activity("encode", 0, 8, 1, 12_000_000))
    assert worker.patience(60) == 120, "a long row is given the time that it may need"
    worker.note(Activity("read", 0))
    assert worker.patience(60) == 120
