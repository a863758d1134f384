"""Workers that fail for good, that wait, that need too much; one failure is row R5.

Faults are real: processes are killed by signals, exit, segfault. They are planted under `fork`,
where a worker inherits the planted function; the supervisor is the same for every start method.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.commands import dataset_bytes, descendants, start
from support.inputs import write_jsonl
from support.workers import Notes, clean, marked, plant  # noqa: F401  # noqa: F401

import tokenmill
from tokenmill.engines.local import supervisor as local
from tokenmill.engines.unit import UnitWorker
from tokenmill.errors import WorkerError


def test_units_that_wait_for_their_place_are_spilled_and_come_out_the_same(
    large_inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first unit sticks for a while; the other worker runs ahead of it and must spill."""
    from tokenmill.engines.writing.encoded_unit import EncodedUnit

    tokenmill.prepare(large_inputs, tmp_path / "a", workers=0)
    right, spill = UnitWorker.encode_batch, EncodedUnit.spill
    slow, spilled = tmp_path / "slow", tmp_path / "spilled"

    def encode_batch(
        self: UnitWorker, source: object, batch: object, packer: object, *known: object
    ) -> int:
        if not slow.exists():
            slow.write_text("x")
            time.sleep(3)
        return right(self, source, batch, packer, *known)  # type: ignore[arg-type]

    def noted(self: EncodedUnit, path: Path) -> None:
        spilled.write_text("x")
        spill(self, path)

    monkeypatch.setattr(UnitWorker, "encode_batch", encode_batch)
    monkeypatch.setattr(EncodedUnit, "spill", noted)
    monkeypatch.setattr(EncodedUnit, "held_bytes", property(lambda self: 10**9))
    tokenmill.prepare(large_inputs, tmp_path / "b", workers=2, start_method="fork")
    assert spilled.exists()
    assert dataset_bytes(tmp_path / "a") == dataset_bytes(tmp_path / "b")


def test_a_full_cache_of_words_is_dropped_without_changing_a_byte(
    large_inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmill.tokenizer import session

    tokenmill.prepare(large_inputs, tmp_path / "a", workers=0)
    growing = itertools.count(10**12, 10**9)
    monkeypatch.setattr(session, "resident_bytes", lambda: next(growing))
    result = tokenmill.prepare(large_inputs, tmp_path / "b", workers=0)
    assert result.run["encoder"]["reopened"] > 5
    assert dataset_bytes(tmp_path / "a") == dataset_bytes(tmp_path / "b")


def test_the_memory_of_all_processes_together_stays_within_the_budget(
    large_inputs: list[Path], tmp_path: Path
) -> None:
    process = start(large_inputs, tmp_path / "o", ["--memory", "1GB", "--tokenizer", "o200k_base"])
    peak = 0
    while process.poll() is None:
        used = 0
        with contextlib.suppress(psutil.Error):
            used += psutil.Process(process.pid).memory_full_info().pss
        for member in descendants(process.pid):
            with contextlib.suppress(psutil.Error):
                used += member.memory_full_info().pss
        peak = max(peak, used)
        time.sleep(0.05)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert 100e6 < peak < 1e9


def test_a_worker_that_even_the_kernel_cannot_end_is_given_up(
    marked: Path, clean: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a dead disk. Here it is never really killed, and wakes up late."""
    flag = tmp_path / "flag"

    def hang_once() -> None:
        if not flag.exists():
            flag.write_text(str(os.getpid()))
            time.sleep(6)

    plant(monkeypatch, hang_once)
    monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "2.5")
    monkeypatch.setattr(local, "UNKILLABLE_SECONDS", 0.5)
    monkeypatch.setattr(local, "reap", lambda worker: worker.pipe.close())
    notes = Notes()
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.popen_fork.Popen._send_signal", lambda *_: None)
        result = tokenmill.prepare(
            marked, tmp_path / "o", workers=2, start_method="fork", observer=notes
        )
    assert result.run["retries"] == 1
    assert "cannot be ended" in notes.lines[0]
    assert dataset_bytes(tmp_path / "o") == clean
    os.waitpid(int(flag.read_text()), 0)  # it ends when it finds its pipe closed
    assert dataset_bytes(tmp_path / "o") == clean


def test_a_slow_reader_is_not_taken_for_a_hung_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece of a giant line takes less than the timer, all of them together far more."""
    from tokenmill.inputs.readers import jsonl as json_lines

    giant = write_jsonl(tmp_path / "a.jsonl", ["some words " * 2_000_000, "y"])
    tokenmill.prepare(giant, tmp_path / "a", workers=0)
    right = json_lines.open_stream

    class Slow:
        def __init__(self, path: str, compression: str) -> None:
            self.stream = right(path, compression)

        def __getattr__(self, name: str) -> object:
            return getattr(self.stream, name)

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            self.stream.close()

        def read(self, size: int) -> bytes:
            time.sleep(0.4)
            return self.stream.read(size)  # type: ignore[no-any-return]

        def readline(self, size: int) -> bytes:
            time.sleep(0.4)
            return self.stream.readline(size)  # type: ignore[no-any-return]

    monkeypatch.setattr(json_lines, "open_stream", Slow)
    monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "1.5")
    result = tokenmill.prepare(giant, tmp_path / "b", workers=1, start_method="fork")
    assert result.run["retries"] == 0
    assert dataset_bytes(tmp_path / "a") == dataset_bytes(tmp_path / "b")


FAULTS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "did nothing": lambda: time.sleep(1000),
}


def test_a_script_without_a_main_guard_works_under_every_start_method(
    marked: Path, clean: dict[str, bytes], tmp_path: Path
) -> None:
    import subprocess
    import sys

    script = tmp_path / "script.py"
    for method in ("fork", "spawn", "forkserver"):
        output = tmp_path / method
        script.write_text(
            "import tokenmill\n"
            "print('started')\n"
            f"tokenmill.prepare({str(marked)!r}, {str(output)!r}, workers=2, "
            f"start_method={method!r})\n"
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("started") == 1, "workers must not run the caller's script"
        assert dataset_bytes(output) == clean


@pytest.mark.parametrize("how", ["SIGKILL", "did nothing"])
def test_a_worker_that_fails_twice_while_it_writes_a_unit_ends_the_run(
    how: str, marked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(self: UnitWorker, encoded: object, before: object) -> None:
        FAULTS[how]()

    monkeypatch.setattr(UnitWorker, "place", place)
    if how == "did nothing":  # else a busy machine may be taken for a stuck worker
        monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "4")
    with pytest.raises(WorkerError, match=r"\d workers died on unit"):
        tokenmill.prepare(marked, tmp_path / "o", workers=2, start_method="fork")


@pytest.mark.parametrize("how", ["SIGKILL", "did nothing"])
def test_a_second_death_while_a_unit_is_read_ends_the_run_with_file_unit_and_cause(
    how: str,
    marked: Path,
    clean: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No batch is under way, so no row can be looked for (those of test_bisect.py can)."""
    from tokenmill.inputs.readers import columns

    right = columns._arrow_batch

    def read(column: object, first_row: int) -> object:
        if first_row >= 2250:
            FAULTS[how]()
        return right(column, first_row)

    if how == "did nothing":  # else a busy machine may be taken for a stuck worker
        monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "4")
    with monkeypatch.context() as patch:
        patch.setattr(columns, "_arrow_batch", read)
        with pytest.raises(WorkerError) as ended:
            tokenmill.prepare(marked, tmp_path / "o", workers=2, start_method="fork")
    message = ended.value.message
    times = 5 if how == "SIGKILL" else 2  # a kill may come from outside
    assert message.startswith(f"m.parquet: {times} workers died on unit ")
    assert "row groups" in message
    assert how in message
    tokenmill.prepare(marked, tmp_path / "o", workers=2)
    assert dataset_bytes(tmp_path / "o") == clean
