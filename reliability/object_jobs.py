"""Jobs in a store without places that dies, lies and is shared, and what must hold after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliability.corpus import dataset_bytes, documents, write_jsonl, write_parquet
from reliability.memory_store import MemoryStore
from reliability.small_job import make_fast
from tokenmill import pipeline
from tokenmill.dataset.verification import verify
from tokenmill.errors import RefusedError
from tokenmill.output.journal import framed_records, unit_record
from tokenmill.output.objects.units import object_name
from tokenmill.output.result import Result
from tokenmill.system.disk import Buffer

WORK = ".tokenmill/"
MIX = """
tokens = 3000
[source.some]
inputs = ["a.parquet"]
weight = 0.4
[source.other]
inputs = ["b.jsonl"]
weight = 0.6
max_epochs = 9
"""
NEVER = 1 << 30


class Killed(BaseException):
    """The process ends here: nothing of it changes the store any more."""


class TestStore(MemoryStore):
    """Calls `at` before every change, with its number from 1 on; dead once it has raised Killed."""

    __test__ = False

    def __init__(self, files: dict[str, bytes], at: Callable[[int], None] = lambda n: None) -> None:
        super().__init__(files)
        self.at, self.changes, self.dead = at, 0, False
        self.put: list[str] = []  # files that were written in parts
        self.lost_answers = False  # every create is carried out, and told to have been before

    def _change(self) -> None:
        self._alive()
        self.changes += 1
        try:
            self.at(self.changes)
        except Killed:
            self.dead = True
            raise

    def _alive(self) -> None:
        if self.dead:
            raise Killed

    def read(self, name: str, offset: int, length: int) -> bytes:
        self._alive()
        return super().read(name, offset, length)

    def write_whole(self, name: str, content: bytes) -> None:
        self._change()
        super().write_whole(name, content)

    def write_parts(self, name: str, parts: Iterable[Buffer], size: int = 0) -> None:
        whole = list(parts)  # an upload that does not end is not there
        self._change()
        self.put.append(name)
        super().write_parts(name, whole)

    def create(self, name: str, content: bytes) -> None:
        self._change()
        super().create(name, content)
        if self.lost_answers:
            raise RefusedError(f"{name}: exists already")

    def remove(self, name: str) -> bool:
        self._change()
        return super().remove(name)


def killed_at(number: int) -> Callable[[int], None]:
    def at(change: int) -> None:
        if change == number:
            raise Killed

    return at


@dataclass
class ObjectJob:
    name: str
    inputs: list[Path]
    options: dict[str, Any]
    overwrites: ObjectJob | None = None
    expected: dict[str, bytes] = field(default_factory=dict)

    def run(self, store: MemoryStore, scratch: Path, **more: Any) -> Result:
        given = {"name": "x", "on_bad_row": "quarantine", "encoder_check": "none"}
        return pipeline.prepare(
            self.inputs, store, scratch=str(scratch), **{**given, **self.options, **more}
        )

    def run_first(self, store: MemoryStore, scratch: Path) -> Result:
        return self.run(store, scratch, overwrite=self.overwrites is not None)

    def before(self) -> dict[str, bytes]:
        return {} if self.overwrites is None else dict(self.overwrites.expected)

    def in_a_folder(self, folder: Path) -> ObjectJob:
        """With `expected` filled: what the same job gives in a folder."""
        given = {"name": "x", "on_bad_row": "quarantine", "encoder_check": "none"}
        pipeline.prepare(self.inputs, folder / self.name, workers=0, **{**given, **self.options})
        self.expected = dataset_bytes(folder / self.name)
        return self

    def until_killed(self, files: dict[str, bytes], number: int, scratch: Path) -> bool:
        """Whether the kill struck before the job was over."""
        try:
            self.run_first(TestStore(files, killed_at(number)), scratch)
        except Killed:
            return True
        return False

    # --- what must hold ----------------------------------------------------------------------

    def check_reader(self, files: dict[str, bytes]) -> None:
        if "manifest.json" in files:
            report = verify(MemoryStore(files))
            assert report.ok, f"a reader sees a broken dataset: {report.problems[:3]}"

    def check_resume(self, files: dict[str, bytes], scratch: Path, *, undamaged: bool) -> None:
        """The same command again ends with the bytes of a folder, and nothing else."""
        finished = "manifest.json" in files
        recorded = recorded_units(files)
        made = {name for name in files if name.startswith(f"{WORK}files/made/")}
        writes = TestStore(files)
        try:
            result = self.run(writes, scratch)
        except RefusedError:
            if self.overwrites is None or not finished:  # the old dataset is there: so be it
                raise
            result = self.run(TestStore(files), scratch, overwrite=True)
        self.check_done(files)
        if undamaged and not finished:
            again = [name for name in recorded if name in writes.put]
            assert not again, f"recorded, and put again: {again[:3]}"
            assert result.run["units_encoded"] == 0 or not made, "files made before all units"

    def check_done(self, files: dict[str, bytes]) -> None:
        found = {name: content for name, content in files.items() if name != "run.json"}
        differing = sorted(
            name
            for name in found.keys() | self.expected.keys()
            if found.get(name) != self.expected.get(name)
        )
        assert not differing, f"not what a folder holds: {differing[:5]}"
        assert "run.json" in files, "no run.json"


class ExportJob(ObjectJob):
    """A finished dataset in a new order: `inputs` is its folder."""

    def run(self, store: Any, scratch: Path, **more: Any) -> Result:
        return pipeline.export(self.inputs[0], store, **{"name": "x", **self.options, **more})

    def in_a_folder(self, folder: Path) -> ObjectJob:
        self.run(folder / self.name, folder, workers=0)
        self.expected = dataset_bytes(folder / self.name)
        return self


def exported_job(folder: Path, job: ObjectJob) -> ObjectJob:
    """`job`: of which the dataset is in the folder of folders already."""
    options = {"format": "llmc", "shard_tokens": 2000, "shuffle": True, "seed": 4}
    export = ExportJob("exported", [folder / "folders" / job.name], options)
    return export.in_a_folder(folder / "folders")


def recorded_units(files: dict[str, bytes]) -> list[str]:
    """The objects that an unfinished job's records name."""
    store, names = MemoryStore(files), []
    for name in (*store.names(f"{WORK}records/"), *store.names(f"{WORK}journal/")):
        magic, fingerprint, _ = files[name].split(b"\n", 2)
        for body, _ in framed_records(files[name], len(magic) + len(fingerprint) + 2):
            names.append(object_name(f"{WORK}units", unit_record(body)))
    return names


def changes_of(job: ObjectJob, scratch: Path) -> int:
    store = TestStore(job.before())
    job.run_first(store, scratch)
    job.check_done(store.files)
    return store.changes


def object_jobs(folder: Path) -> Iterator[ObjectJob]:
    """Every format; several at once; a tail; a merged shard; another dataset in the way; shuffled
    ones, with runs that are merged and several ranges; a mixture that takes documents again."""
    from tokenmill.formats import FORMATS

    make_fast()
    os.environ["TOKENMILL_RANGE_BYTES"], os.environ["TOKENMILL_MAX_RUNS"] = "1500", "1"
    inputs = [folder / "in/a.parquet", folder / "in/b.jsonl"]
    if not inputs[0].exists():
        (folder / "in").mkdir(parents=True)
        write_parquet(inputs[0], documents(16, "a"), rows=8)
        path = write_jsonl(inputs[1], documents(12, "b"))
        path.write_bytes(path.read_bytes() + b'{"text": 17}\n')
    chosen: dict[str, dict[str, Any]] = {
        name: {"format": name, "val": "docs:5", "shard_tokens": 700}
        if fmt.sharded
        else {"format": name, "val": 0.2}
        for name, fmt in FORMATS.items()
    }
    chosen["several"] = {"format": "llmc,hf,parquet", "val": "docs:5", "shard_tokens": 900}
    chosen["tail"] = {"format": "nanogpt", "val": "tail:0.2"}
    chosen["merged"] = {
        "format": "llmc", "val": "none", "shard_tokens": 700, "min_shard_tokens": 690,
        "last_shard": "merge",
    }  # fmt: skip
    jobs = {name: ObjectJob(name, inputs, options) for name, options in chosen.items()}
    shuffle: dict[str, Any] = {"shuffle": True, "seed": 3, "shard_tokens": 700}
    shuffled = {**shuffle, "format": "llmc", "val": "docs:5"}
    jobs["shuffled"] = ObjectJob("shuffled", inputs, shuffled)
    framed = {**shuffle, "format": "llmc,mds", "val": 0.2}
    jobs["framed"] = ObjectJob("framed", inputs, framed)
    mix = folder / "in/mix.toml"
    mix.write_text(MIX)
    jobs["mixed"] = ObjectJob("mixed", [], {**shuffle, "mix": mix, "format": "llmc", "val": 0.2})
    jobs["overwrite"] = ObjectJob("overwrite", inputs, chosen["nanogpt"], overwrites=jobs["llmc"])
    for job in jobs.values():
        yield job.in_a_folder(folder / "folders")
