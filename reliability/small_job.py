"""Small jobs that can be broken at and resumed thousands of times, and what must hold after."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import tokenmill
from reliability.corpus import (
    dataset_bytes,
    documents,
    durable_records,
    mixed,
    resumed,
    write_jsonl,
)
from tokenmill.dataset.verification import verify
from tokenmill.engines import loop, unit
from tokenmill.errors import RefusedError, TokenmillError
from tokenmill.output.result import Result
from tokenmill.system import disk as steps
from tokenmill.tokenizer.encoders.awkward_stand_in import use_stand_in
from tokenmill.tokenizer.encoders.exact import ExactEncoder

MIX = """
tokens = 3000
[source.some]
inputs = ["in/a.parquet"]
weight = 0.4
[source.other]
inputs = ["in/b.jsonl"]
weight = 0.6
max_epochs = 9
"""
_encoders: dict[tuple[str, str], Any] = {}


def _kept_encoder(encoding: Any, encoder: Any) -> Any:
    key = encoding.name, encoder
    if key not in _encoders:
        _encoders[key] = ExactEncoder(encoding, encoder)
    return _encoders[key]


def make_fast() -> None:
    """One encoder for all jobs of this process and its forks; every unit synced by itself, and
    spilled before: those steps are broken at too."""
    use_stand_in()
    os.environ["TOKENMILL_SYNC_SECONDS"] = "0"
    # Jobs by key: several ranges, and units that are merged before.
    os.environ["TOKENMILL_RANGE_BYTES"], os.environ["TOKENMILL_MAX_RUNS"] = "4000", "1"
    setattr(unit, "ExactEncoder", _kept_encoder)  # noqa: B010
    setattr(loop, "SPILL_SHARE", 1 << 62)  # noqa: B010


@dataclass
class Job:
    """A command line, its inputs, and what it gives when nothing disturbs it."""

    name: str
    inputs: list[Path]
    options: dict[str, Any]
    workers: int = 0
    overwrites: Job | None = None  # the dataset that is in the folder before
    expected: dict[str, bytes] = field(default_factory=dict)

    def undisturbed(self, folder: Path) -> Job:
        """With `expected` filled, by a run or from an earlier one's files."""
        if self.overwrites is not None:
            self.overwrites.undisturbed(folder)
        if not (folder / self.name).exists():
            self.run(folder / self.name)
        self.expected = dataset_bytes(folder / self.name)
        return self

    def run(self, output: Path, workers: int | None = None, **more: Any) -> Result:
        return tokenmill.prepare(
            self.inputs,
            output,
            workers=self.workers if workers is None else workers,
            start_method="fork",
            quiet=True,
            encoder_check=False,
            **self.options,
            **more,
        )

    def run_first(self, output: Path) -> Result:
        """As the user would type it the first time."""
        return self.run(output, overwrite=self.overwrites is not None)

    def touched(self, output: Path) -> list[Path]:
        """The folders in which a fault of the disk can strike."""
        return [output.parent]

    def before(self, output: Path) -> None:
        """What is in the folder before the job begins."""
        if self.overwrites is not None:
            for name, content in self.overwrites.expected.items():
                path = output / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    # --- what must hold ----------------------------------------------------------------------

    def check_reader(self, output: Path) -> None:
        """Whatever a reader finds under its final name is whole."""
        if not output.exists():
            return
        if (output / "manifest.json").exists():
            report = verify(output)
            assert report.ok, f"a reader sees a broken dataset: {report.problems[:3]}"
        old = self.overwrites.expected if self.overwrites else {}
        for name, content in dataset_bytes(output).items():
            if not name.startswith("."):
                whole = content in (self.expected.get(name), old.get(name))
                assert whole, f"{name} is visible and not whole"

    def check_resume(self, output: Path) -> None:
        """The same command again ends with the bytes of an undisturbed run, and nothing else."""
        self.check_reader(output)
        durable = durable_records(output)
        finished = (output / "manifest.json").exists()
        try:
            result = self.run(output, workers=0)
        except RefusedError:
            if self.overwrites is None or not finished:  # the old dataset is there: so be it
                raise
            result = self.run(output, workers=0, overwrite=True)
        self.check_done(output)
        if not finished:
            kept = resumed(result.run)
            assert kept == len(durable), f"{len(durable)} units durable, {kept} resumed"

    def check_done(self, output: Path) -> None:
        found = dataset_bytes(output)
        if found != self.expected:
            differing = sorted(
                name
                for name in found.keys() | self.expected.keys()
                if found.get(name) != self.expected.get(name)
            )
            raise AssertionError(f"not what an undisturbed run gives: {differing[:5]}")
        left = [p.name for p in output.iterdir() if p.name.startswith(".")]
        assert not left, f"left over: {left}"
        assert (output / "run.json").exists(), "no run.json"


@dataclass
class ExportJob(Job):
    """`inputs` are one dataset, which is exported; there are no units in it."""

    def run(self, output: Path, workers: int | None = None, **more: Any) -> Result:
        result = tokenmill.export(self.inputs[0], output, quiet=True, **self.options, **more)
        return msgspec.structs.replace(result, run={"units_resumed": 0})

    def touched(self, output: Path) -> list[Path]:
        return [output.parent, *self.inputs]


def small_jobs(folder: Path, only: str = "") -> list[Job]:
    """nanoGPT; llm.c with many shards and bad rows; another dataset in the way; two workers; two
    formats, of which one is framed and both have files beside their token files; a shuffled job;
    a mixture, of which one source is taken in part and the other one more than once; an export."""
    make_fast()
    if not (folder / "in").exists():
        mixed(folder / "in", 16)
        bad = b'{"text": 17}\n{"text": "\\ud800"}\n{"txt": "no text"}\n'
        path = write_jsonl(folder / "in/f.jsonl", documents(16, "f"))
        path.write_bytes(path.read_bytes() + bad)
        (folder / "mix.toml").write_text(MIX)
    *inputs, last = sorted((folder / "in").iterdir())
    llmc: dict[str, Any] = {
        "format": "llmc", "name": "x", "shard_tokens": 1500, "val": "shard",
        "on_bad_row": "quarantine",
    }  # fmt: skip
    formats: dict[str, Any] = {
        "format": "datatrove,mds", "name": "x", "shard_tokens": 4000, "val": 0.1,
    }  # fmt: skip
    nanogpt = Job("nanogpt", inputs, {"val": 0.1})
    shards = Job("llmc", [*inputs, last], llmc)
    jobs = [
        nanogpt,
        shards,
        Job("overwrite", inputs, {"val": 0.1}, overwrites=shards),
        Job("workers", inputs, {"val": 0.1}, workers=1),
        Job("formats", inputs[:2], formats),
        Job("shuffled", inputs[:2], {"shuffle": True, "val": 0.1}),
        Job("mixed", [], {"mix": folder / "mix.toml", "shuffle": True, "val": 0.1}),
        ExportJob("export", [folder / "clean/nanogpt"], {"format": "mds", "shard_tokens": 9000}),
    ]
    nanogpt.undisturbed(folder / "clean")  # which is exported
    return [job.undisturbed(folder / "clean") for job in jobs if only in ("", job.name)]


@contextlib.contextmanager
def using(disk: Any) -> Iterator[None]:
    before, steps.disk = steps.disk, disk
    try:
        yield
    finally:
        steps.disk = before


def in_child(action: Callable[[], Any]) -> tuple[int, str]:
    """Run something in a forked process; how it ended (as -signal or exit code), what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code, said = 0, ""
        try:
            action()
        except TokenmillError as error:
            code, said = error.exit_code, f"{type(error).__name__}: {error.message}"
        except BaseException as error:
            code, said = 99, repr(error)
        os.write(writing, said.encode()[:60000])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said


def died(code: int) -> bool:
    return code == -signal.SIGKILL


def copy(source: Path, target: Path) -> None:
    if source.exists():
        shutil.copytree(source, target, symlinks=True)
