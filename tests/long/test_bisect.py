"""A row that kills or hangs its worker is found, named or set aside; all else is written.

Faults are real and planted where a worker encodes: under `fork` by a patch that the worker
inherits, for the other start methods by a `sitecustomize` module that every process imports.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bisect import ABORTED, documents, lines, parquet, quarantined, same_tokens
from support.commands import dataset_bytes, descendants, gone
from support.fatal_rows import MARKER, plant
from support.inputs import write_parquet
from support.text import small_ranges  # noqa: F401

import tokenmill
from tokenmill import assembly
from tokenmill.engines.unit import UnitWorker
from tokenmill.engines.writing.encoded_unit import EncodedUnit
from tokenmill.errors import TokenmillError, WorkerError

FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "kill": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        "ended its worker by SIGKILL (probably by the out-of-memory killer)",
    ),
    "segfault": (lambda: ctypes.string_at(0), "ended its worker by SIGSEGV"),
    "abort": (os.abort, "ended its worker by SIGABRT"),
    "exit": (lambda: os._exit(3), "ended its worker with exit code 3"),
    "hang": (lambda: time.sleep(1000), "hung its worker"),
}


@pytest.mark.parametrize("how", FAULTS)
def test_the_row_is_named_and_then_set_aside(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, null = parquet(tmp_path, 1200, (777,))
    fault, words = FAULTS[how]
    if how == "hang":
        monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "2.5")
    output = tmp_path / "o"
    plant(monkeypatch, fault)
    with pytest.raises(WorkerError) as ended:
        tokenmill.prepare(faulty, output, workers=2, start_method="fork")
    times, probes = ("4 times", 5) if how == "kill" else ("twice", 3)  # a kill may be chance
    reason = f"encoding it alone {words}, {times}"
    assert ended.value.message == f"m.parquet: row 777 (row group 7): {reason}"
    assert "on_bad_row='quarantine'" in ended.value.hint
    result = tokenmill.prepare(
        faulty, output, workers=2, start_method="fork", on_bad_row="quarantine"
    )
    assert result.manifest.set_aside == [{"source": "m.parquet", "row": 777, "reason": reason}]
    assert result.run["probes"] == probes, "the batch, the row, the rest of the batch"
    counts = result.manifest.counts
    assert (counts["rows"], counts["documents"], counts["quarantined"]) == (1200, 1199, 1)
    (row,) = quarantined(output)
    assert (row["source"], row["row"], row["reason"]) == ("m.parquet", 777, reason)
    text = base64.b64decode(str(row["bytes"])).decode()
    assert text == documents(1200, (777,))[777]
    same_tokens(output, null)
    assert not tokenmill.verify(output).problems


def test_many_such_rows_in_one_unit_and_the_same_folder_from_one_and_three_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last row of the file and of a row group, neighbours, two units."""
    marked = (0, 1, 99, 100, 1234, 2600, 2999)
    faulty, null = parquet(tmp_path, 3000, marked)
    folders = []
    with monkeypatch.context() as patch:
        plant(patch)
        for workers in (1, 3):
            output = tmp_path / f"o{workers}"
            result = tokenmill.prepare(
                faulty,
                output,
                workers=workers,
                start_method="fork",
                on_bad_row="quarantine",
                val="docs:5",
            )
            folders.append(dataset_bytes(output))
    assert folders[0] == folders[1]
    assert result.manifest.set_aside == [
        {"source": "m.parquet", "row": row, "reason": ABORTED} for row in marked
    ]
    assert [row["row"] for row in quarantined(output)] == list(marked)
    assert result.manifest.counts["quarantined"] == len(marked)
    same_tokens(output, null, val="docs:5")


def test_rows_that_do_no_harm_alone_are_named_as_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, _ = parquet(tmp_path, 1200, (777,))
    with monkeypatch.context() as patch:
        plant(patch, least=2)
        with pytest.raises(WorkerError) as ended:
            tokenmill.prepare(
                faulty,
                tmp_path / "o",
                workers=2,
                start_method="fork",
                on_bad_row="quarantine",
            )
    assert "m.parquet: 3 workers died on unit 0.0 " in ended.value.message
    assert "with rows 700 to 799 under way" in ended.value.message
    assert "none ended its worker" in ended.value.message
    result = tokenmill.prepare(faulty, tmp_path / "o", workers=2)
    assert result.manifest.set_aside == []
    assert result.manifest.counts["documents"] == 1200


def test_a_row_that_was_a_suspect_once_and_did_no_harm_again_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three deaths on a row, as a machine short of memory may cause; then no more."""
    faulty, _ = parquet(tmp_path, 1200, (710, 777))
    tokenmill.prepare(faulty, tmp_path / "clean", workers=0)
    log = tmp_path / "log"
    right = UnitWorker.encode_batch

    def encode_batch(
        self: UnitWorker, source: object, batch: object, packer: object, *known: object
    ) -> int:
        content = batch.texts.used().tobytes()  # type: ignore[attr-defined]
        deaths = len(log.read_text()) if log.exists() else 0
        if b"in row 710" in content and deaths < 3:
            log.write_text("x" * (deaths + 1))
            os._exit(9)
        return right(self, source, batch, packer, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(UnitWorker, "encode_batch", encode_batch)
    options = {"workers": 2, "start_method": "fork", "on_bad_row": "quarantine"}
    result = tokenmill.prepare(faulty, tmp_path / "o", **options)
    assert len(log.read_text()) == 3
    assert (result.run["retries"], result.run["probes"]) == (3, 4)
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "clean")


@pytest.mark.parametrize(
    ("number", "deaths", "probes"),
    [
        (signal.SIGKILL, 4, 5),  # the batch, the suspect twice, the rest, all of it checked
        (signal.SIGTERM, 4, 0),  # no row can do that
    ],
)
def test_workers_killed_from_outside_convict_no_row(
    number: int, deaths: int, probes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if somebody hit every worker just when it is at the same row; the fifth is too much."""
    faulty, _ = parquet(tmp_path, 1200, (710,))
    tokenmill.prepare(faulty, tmp_path / "clean", workers=0)
    log = tmp_path / "log"
    right = UnitWorker.encode_batch
    options = {"workers": 2, "start_method": "fork", "on_bad_row": "quarantine"}

    def hit(times: int) -> object:
        def encode_batch(
            self: UnitWorker, source: object, batch: object, packer: object, *known: object
        ) -> int:
            content = batch.texts.used().tobytes()  # type: ignore[attr-defined]
            seen = len(log.read_text()) if log.exists() else 0
            if b"in row 710" in content and seen < times:
                log.write_text("x" * (seen + 1))
                os.kill(os.getpid(), number)
            return right(self, source, batch, packer, *known)  # type: ignore[arg-type]

        return encode_batch

    monkeypatch.setattr(UnitWorker, "encode_batch", hit(deaths))
    result = tokenmill.prepare(faulty, tmp_path / "o", **options)
    assert (result.run["retries"], result.run["probes"]) == (deaths, probes)
    assert result.manifest.set_aside == []
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "clean")
    if number == signal.SIGTERM:
        log.unlink()
        monkeypatch.setattr(UnitWorker, "encode_batch", hit(5))
        with pytest.raises(WorkerError, match=r"5 workers died on unit 0\.0 .* by SIGTERM"):
            tokenmill.prepare(faulty, tmp_path / "p", **options)


def test_a_row_that_kills_the_reference_encoder_alone_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check encodes few documents; in the hunt it encodes all."""
    from tokenmill.tokenizer.encoders.exact import ExactEncoder

    faulty, null = parquet(tmp_path, 1200, (700,))
    right = ExactEncoder.check

    def check(self: ExactEncoder, texts: object, *args: object) -> int:
        index: int = args[2]  # type: ignore[assignment]
        document = texts.document(index)  # type: ignore[attr-defined]
        if MARKER.encode() in document:
            os._exit(3)
        return right(self, texts, *args)  # type: ignore[arg-type]

    from tokenmill.engines import unit
    from tokenmill.tokenizer.encoders import checking

    monkeypatch.setattr(unit, "document_hash", lambda seed, source, at: [0])  # check from the first
    monkeypatch.setattr(checking, "CHECK_BYTES", 1 << 40)  # all of a batch is within the credit
    with monkeypatch.context() as patch:
        patch.setattr(ExactEncoder, "check", check)
        result = tokenmill.prepare(
            faulty, tmp_path / "o", workers=2, start_method="fork", on_bad_row="quarantine"
        )
    assert [one["row"] for one in result.manifest.set_aside] == [700]
    assert result.run["probes"] == 3, "all rows, all rows checked, the row alone"
    same_tokens(tmp_path / "o", null)


def test_units_behind_it_wait_and_spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty, null = parquet(tmp_path, 8000, (5, 5000))
    spilled, spill = tmp_path / "spilled", EncodedUnit.spill

    def noted(self: EncodedUnit, path: Path) -> None:
        spilled.write_text("x")
        spill(self, path)

    left: list[Path] = []
    commit = assembly.committing.commit

    def look(*args: object, **options: object) -> object:
        left.extend((tmp_path / "o" / ".tokenmill" / "spill").iterdir())
        return commit(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        plant(patch)
        patch.setattr(assembly.committing, "commit", look)
        patch.setattr(EncodedUnit, "spill", noted)
        patch.setattr(EncodedUnit, "held_bytes", property(lambda self: 10**9))
        result = tokenmill.prepare(
            faulty, tmp_path / "o", workers=3, start_method="fork", on_bad_row="quarantine"
        )
    assert spilled.exists()
    assert left == []
    assert [one["row"] for one in result.manifest.set_aside] == [5, 5000]
    same_tokens(tmp_path / "o", null)


PLANTED = """
import os, time
from tokenmill.engines.unit import UnitWorker
right = UnitWorker.encode_batch
def encode_batch(self, source, batch, packer, *known):
    if b"<<MARKER>>" in batch.texts.used().tobytes():
        with open(os.environ["DEATHS"], "ab") as file:
            file.write(b"x" if batch.texts.documents > 1 else b"1")
        time.sleep(float(os.environ["DELAY"]))
        os._exit(3)
    return right(self, source, batch, packer, *known)
UnitWorker.encode_batch = encode_batch
"""


def start_planted(
    tmp_path: Path, faulty: Path, output: Path, *options: str, delay: float = 0
) -> subprocess.Popen[bytes]:
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(PLANTED)
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "prepare", str(faulty), "-o", str(output),
         "--workers", "2", "--quiet", *options],
        env={**os.environ, "PYTHONPATH": path, "DEATHS": str(tmp_path / "deaths"),
             "DELAY": str(delay), "TOKENMILL_SYNC_SECONDS": "0.05"},
        stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_under_every_start_method(method: str, tmp_path: Path) -> None:
    faulty, null = parquet(tmp_path, 1200, (777, 779))
    output = tmp_path / "o"
    process = start_planted(tmp_path, faulty, output, "--start-method", method)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr
    assert b"m.parquet: row 777 (row group 7): encoding it alone ended its worker with" in stderr
    process = start_planted(
        tmp_path, faulty, output, "--start-method", method, "--on-bad-row", "quarantine"
    )
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 4, stderr
    assert [row["row"] for row in quarantined(output)] == [777, 779]
    same_tokens(output, null)


def test_a_coordinator_killed_in_the_middle_of_the_hunt(tmp_path: Path) -> None:
    faulty, _ = parquet(tmp_path, 3000, (2345,))
    options = ("--on-bad-row", "quarantine")
    undisturbed = start_planted(tmp_path, faulty, tmp_path / "a", *options)
    undisturbed.communicate(timeout=120)
    deaths = tmp_path / "deaths"
    for stage in (b"xx1", b"xx11"):  # in the walk over the batch; while the row is confirmed
        deaths.write_bytes(b"")
        process = start_planted(tmp_path, faulty, tmp_path / "b", *options, delay=0.5)
        while not deaths.read_bytes().startswith(stage) and process.poll() is None:
            time.sleep(0.01)
        family = descendants(process.pid)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert gone(family)
        assert not (tmp_path / "b" / "manifest.json").exists()
    process = start_planted(tmp_path, faulty, tmp_path / "b", *options)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 4, stderr
    assert dataset_bytes(tmp_path / "b") == dataset_bytes(tmp_path / "a")
    record = json.loads((tmp_path / "b" / "run.json").read_bytes())
    assert record["probes"] == 3


def test_a_durable_unit_is_not_done_again_and_a_damaged_one_needs_no_second_hunt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal tells which rows of it to set aside, and the bytes come out the same."""
    faulty, _ = lines(tmp_path, "m.jsonl", 5000, (1800,))
    options = {"workers": 1, "start_method": "fork", "on_bad_row": "quarantine"}
    with monkeypatch.context() as patch:
        plant(patch)
        tokenmill.prepare(faulty, tmp_path / "a", **options)
    right = UnitWorker.encode_batch

    def encode_batch(
        self: UnitWorker, source: object, batch: object, packer: object, *known: object
    ) -> int:
        if b"document 4900 " in batch.texts.used().tobytes():  # type: ignore[attr-defined]
            raise TokenmillError("enough")
        return right(self, source, batch, packer, *known)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(UnitWorker, "encode_batch", encode_batch)
        plant(patch)
        with pytest.raises(TokenmillError, match="enough"):
            tokenmill.prepare(faulty, tmp_path / "b", **options)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    result = tokenmill.prepare(faulty, tmp_path / "b", **options)
    assert result.run["units_resumed"] == 3
    assert dataset_bytes(tmp_path / "b") == dataset_bytes(tmp_path / "a")

    tokens = tmp_path / "c" / ".tokenmill" / "files" / "tokens-train-000000"
    with open(tokens, "r+b") as file:
        file.seek(tokens.stat().st_size // 2)
        file.write(b"damage")
    with pytest.raises(WorkerError, match=r"m.jsonl: row 1800 \(line 1982\): encoding it alone"):
        tokenmill.prepare(faulty, tmp_path / "c", **{**options, "on_bad_row": "stop"})
    result = tokenmill.prepare(faulty, tmp_path / "c", **options)
    assert (result.run["units_resumed"], result.run["probes"]) == (2, 0)
    assert dataset_bytes(tmp_path / "c") == dataset_bytes(tmp_path / "a")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_long_row_that_is_encoded_in_pieces(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces lie in several units, and setting it aside moves no border of theirs."""
    long = "words in a long row " * 1_100_000
    middle = len(long) // 2
    rows: list[str | None] = ["a", "b", long[:middle] + MARKER + long[middle:], "c", long, "d"]
    (tmp_path / "null").mkdir()
    paths = [tmp_path / f"m.{kind}", tmp_path / "null" / f"m.{kind}"]
    for path in paths:
        if kind == "parquet":
            write_parquet(path, rows)
        else:
            path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
        rows[2] = None
    output = tmp_path / "o"
    plant(monkeypatch)
    options = {"workers": 2, "start_method": "fork", "val": "none"}
    with pytest.raises(WorkerError, match=rf"m\.{kind}: row 2 .*{ABORTED}"):
        tokenmill.prepare(paths[0], output, **options)
    tokenmill.prepare(paths[0], output, on_bad_row="quarantine", **options)
    assert [line["row"] for line in quarantined(output)] == [2]
    # A run of rows ends with its unit, and where the row is null the units are others.
    tokenmill.prepare(paths[1], tmp_path / "n", workers=0, on_bad_row="quarantine", val="none")
    ours, theirs = dataset_bytes(output), dataset_bytes(tmp_path / "n")
    for name in ("train.bin", "index/train.ends"):
        assert ours[name] == theirs[name]
    places = [tokenmill.open_dataset(o)["train"].documents for o in (output, tmp_path / "n")]
    assert [places[0].source(i) for i in range(5)] == [places[1].source(i) for i in range(5)]
    report = tokenmill.verify_deep(output, sample="all")
    assert report.ok, report.problems
    text = tmp_path / "t.txt"
    text.write_text("@@".join(["a", "b", long + MARKER, "z"]))
    with pytest.raises(WorkerError, match=r"2 workers died on unit"):
        tokenmill.prepare(text, tmp_path / "t", text_separator="@@", **options)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz"])
def test_a_row_of_a_line_file_in_its_second_unit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in the whole file, blank lines and all, for a reader that began in its middle."""
    marked = (2000, 2345)
    faulty, null = lines(tmp_path, name, 3000, marked, words=500)
    output = tmp_path / "o"
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(WorkerError) as ended:
            tokenmill.prepare(faulty, output, workers=2, start_method="fork", val="0.1")
        assert ended.value.message == f"{name}: row 2000 (line 2202): {ABORTED}"
        result = tokenmill.prepare(
            faulty, output, workers=2, start_method="fork", val="0.1", on_bad_row="quarantine"
        )
    assert {(one["source"], one["row"]) for one in result.manifest.set_aside} == {
        (name, row) for row in marked
    }
    assert result.run["units_encoded"] + result.run["units_resumed"] > 1
    texts = documents(3000, marked, words=500)
    kept = [(row["row"], row["line"], row["bytes"]) for row in quarantined(output)]
    assert kept == [
        (row, row + row // 10 + 2, base64.b64encode(texts[row].encode()).decode()) for row in marked
    ]
    same_tokens(output, null, val="0.1")
