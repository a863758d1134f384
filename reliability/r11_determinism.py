"""R11: the same plan gives the same bytes, however, where and when it is run.

Every variant is a run of the real command, compared with an undisturbed one file by file, all
bytes but those of run.json, which is about the run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reliability.command import argv, environment, succeed, tokenmill
from reliability.corpus import (
    dataset_bytes,
    documents,
    durable_units,
    mixed,
    write_jsonl,
    write_parquet,
)
from reliability.scorecard import Check

ID = "R11"
PROMISE = "determinism"
MARK = (
    "identical for workers 0, 1, 2, 3, 7; fork, spawn, forkserver; PYTHONHASHSEED, locale, TZ, "
    "umask, listing order, folder, memory; resumed or not; shuffled and mixed: 12 runs"
)

FORMATS = {
    "nanogpt": ["--val", "0.05", "--seed", "7"],
    "llmc": ["--format", "llmc", "--shard-tokens", "300k", "--val", "shard", "--name", "x"],
    "shuffled": ["--shuffle", "--val", "0.05", "--seed", "7"],
    "mixed": ["--mix", "MIX", "--shuffle", "--val", "0.05", "--seed", "7"],
}
# Several ranges of keys, and units that are merged first.
OFTEN = "weight = 2\nmax_epochs = 3"
SMALL_RANGES = {"TOKENMILL_RANGE_BYTES": "400000", "TOKENMILL_MAX_RUNS": "9"}
# Lists every folder backwards, as another file system might.
BACKWARDS = """
import os

class Listed:
    def __init__(self, entries):
        self.entries = iter(sorted(entries, key=lambda e: getattr(e, "name", e), reverse=True))
    def __iter__(self):
        return self.entries
    def __next__(self):
        return next(self.entries)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass

scandir, listdir = os.scandir, os.listdir
os.scandir = lambda *arguments: Listed(scandir(*arguments))
os.listdir = lambda *arguments: list(Listed(listdir(*arguments)))
"""


@dataclass
class Variant:
    """How one run differs from the plain one."""

    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    run: Callable[[Place, list[str]], None] | None = None  # in place of the plain command


@dataclass
class Place:
    """Where a variant runs: the inputs' folder, the files in order, a folder of its own."""

    inputs: Path
    files: list[Path]
    folder: Path
    variant: Variant

    @property
    def output(self) -> Path:
        return self.folder / "o"

    def named(self, options: list[str]) -> list[Path]:
        """The files on the command line; a mixture names its own."""
        return [] if "--mix" in options else self.files


def plain(place: Place, options: list[str]) -> None:
    variant = place.variant
    succeed(
        tokenmill(
            "prepare", *place.named(options), "-o", place.output, "--quiet", *options,
            *variant.options,
            env=variant.env, before=variant.before,
        )
    )  # fmt: skip


def relative(place: Place, options: list[str]) -> None:
    """Named from another folder, by relative paths, with the output beside them."""
    there = place.folder / "elsewhere" / "deep"
    there.mkdir(parents=True)
    names = [os.path.relpath(path, there) for path in place.files]
    succeed(tokenmill("prepare", *names, "-o", "../../o", "--quiet", *options, cwd=there))


def as_folder(place: Place, options: list[str]) -> None:
    succeed(tokenmill("prepare", place.inputs, "-o", place.output, "--quiet", *options))


def other_order(place: Place, options: list[str]) -> None:
    """The files made in another order in another folder, and every listing reversed."""
    copies = place.folder / "copies"
    copies.mkdir()
    for path in sorted(place.files, key=lambda p: p.name[::-1]):
        shutil.copyfile(path, copies / path.name)
    patch = place.folder / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(BACKWARDS)
    search = os.pathsep.join((str(patch), environment()["PYTHONPATH"]))
    probe = subprocess.run(
        [argv()[0], "-c", f"import os; print([e.name for e in os.scandir({str(copies)!r})])"],
        env=environment({"PYTHONPATH": search}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    backwards = sorted((p.name for p in place.files), reverse=True)
    assert probe.stdout.strip() == str(backwards), f"the listing is not reversed: {probe.stdout}"
    succeed(
        tokenmill("prepare", copies, "-o", place.output, "--quiet", *options,
                  env={"PYTHONPATH": search})
    )  # fmt: skip


def backwards(place: Place, options: list[str]) -> None:
    """The inputs in another order on the command line."""
    names = place.files[::-1]
    succeed(tokenmill("prepare", *names, "-o", place.output, "--quiet", *options))


def by_glob(place: Place, options: list[str]) -> None:
    succeed(tokenmill("prepare", place.inputs / "*", "-o", place.output, "--quiet", *options))


def resumed(place: Place, options: list[str]) -> None:
    """Killed, all processes, once a unit is durable; then resumed in another way."""
    killed_and_resumed(place, options, late=False)


def resumed_late(place: Place, options: list[str]) -> None:
    """The same; a shuffled job is killed in its second half."""
    killed_and_resumed(place, options, late="--shuffle" in options)


def killed_and_resumed(place: Place, options: list[str], late: bool) -> None:
    named = map(str, place.named(options))
    arguments = ["prepare", *named, "-o", str(place.output), "--quiet", *options]
    journal = place.output / ".tokenmill" / "journal"
    for _ in range(5):
        process = subprocess.Popen(
            argv(*arguments, "--workers", "1"),
            env=environment({"TOKENMILL_SYNC_SECONDS": "0"}), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None:
            units = durable_units(place.output)
            if any(unit.source >= len(place.files) for unit in units) if late else units:
                break
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if journal.exists():
            break
        shutil.rmtree(place.output, ignore_errors=True)  # it was done before: once more
    assert journal.exists(), "the command was never caught at work"
    done = tokenmill(*arguments, "--json", *place.variant.options)
    succeed(done)
    assert '"units_resumed": 0' not in done.stdout, "nothing was resumed"


def one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def private_files() -> None:
    os.umask(0o077)


VARIANTS: dict[str, Variant] = {
    "workers 0": Variant(["--workers", "0"]),
    "workers 1": Variant(["--workers", "1"]),
    "workers 3, spawn": Variant(["--workers", "3", "--memory", "3GB", "--start-method", "spawn"]),
    "listing order": Variant(run=other_order),
    "resumed": Variant(["--workers", "2"], run=resumed_late),
    "hash seed, locale, zone": Variant(
        env={"PYTHONHASHSEED": "4242", "LC_ALL": "C", "LANG": "C", "TZ": "Asia/Kathmandu",
             "PYTHONUTF8": "0"}
    ),
    "workers 2": Variant(["--workers", "2"]),
    "workers 7": Variant(["--workers", "7", "--memory", "4GB"]),
    "fork": Variant(["--workers", "2", "--start-method", "fork"]),
    "spawn": Variant(["--workers", "2", "--start-method", "spawn"]),
    "forkserver": Variant(["--workers", "2", "--start-method", "forkserver"]),
    "hash seed 0": Variant(env={"PYTHONHASHSEED": "0"}),
    "hash seed 77": Variant(env={"PYTHONHASHSEED": "77"}),
    "locale C.UTF-8": Variant(env={"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}),
    "locale tr_TR": Variant(env={"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}),
    "zone": Variant(env={"TZ": "America/St_Johns"}),
    "umask": Variant(before=private_files),
    "one core": Variant(before=one_core),
    "python -O": Variant(env={"PYTHONOPTIMIZE": "2"}),
    "threads of libraries": Variant(env={"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}),
    "relative paths": Variant(run=relative),
    "a folder as input": Variant(run=as_folder),
    "a glob as input": Variant(run=by_glob),
    "memory 700MB": Variant(["--memory", "700MB"]),
    "no encoder check": Variant(["--no-encoder-check"]),
    "encoder reference": Variant(["--encoder", "reference", "--workers", "2"]),
    "sync at every unit": Variant(env={"TOKENMILL_SYNC_SECONDS": "0"}),
    "resumed without workers": Variant(["--workers", "0"], run=resumed),
    "resumed by spawn": Variant(["--workers", "3", "--start-method", "spawn"], run=resumed),
}  # fmt: skip
OTHER_ORDER = "inputs backwards"  # changes a job that is not shuffled
VARIANTS[OTHER_ORDER] = Variant(run=backwards)
FAST = 6


def corpus(folder: Path, scale: int) -> list[Path]:
    """All formats, many sources, and files of several units."""
    files = [path.rename(folder / f"{i}{path.name}") for i in range(3)
             for path in mixed(folder, 40 * (i + 1))]  # fmt: skip
    texts = documents(600, "large", 300)
    many = texts * scale
    files.append(write_jsonl(folder / "large.jsonl", many))
    files.append(write_jsonl(folder / "large.jsonl.gz", many[: len(many) // 2]))
    files.append(write_parquet(folder / "large.parquet", many[: len(many) // 2], rows=300))
    return sorted(files)


def write_mix(path: Path, files: list[Path]) -> str:
    """Two sources: a part of the one is taken, and the other one more than once."""
    text = 'unit = "documents"\ndocuments = 1500\n'
    for name, paths, rest in (
        ("some", [p for p in files if p.name.startswith("large")], "weight = 1"),
        ("other", [p for p in files if not p.name.startswith("large")], OFTEN),
    ):
        names = json.dumps([f"{p.parent.name}/{p.name}" for p in paths])
        text += f"[source.{name}]\ninputs = {names}\n{rest}\n"
    path.write_text(text)
    return str(path)


def cases(fast: bool) -> list[str]:
    """Every variant of every format that it can be one of."""
    if fast:
        formats = list(FORMATS)
        few = list(VARIANTS)[:FAST]
        names = [f"{name}, {formats[i % 2]}" for i, name in enumerate(few)]
        return [*names, "resumed, shuffled", "workers 3, spawn, mixed"]
    return [
        f"{name}, {format_name}"
        for name, variant in VARIANTS.items()
        for format_name in FORMATS
        if (name != OTHER_ORDER or format_name == "shuffled")
        and (format_name != "mixed" or variant.run in (None, resumed, resumed_late))
    ]


def run(check: Check) -> str:
    os.environ.update(SMALL_RANGES)
    inputs = check.scratch / "inputs"
    inputs.mkdir()
    files = corpus(inputs, check.scale(36, 2))
    mix = write_mix(check.scratch / "mix.toml", files)
    jobs = {
        name: [mix if word == "MIX" else word for word in options]
        for name, options in FORMATS.items()
    }
    expected: dict[str, dict[str, bytes]] = {}
    for name, options in jobs.items():
        place = Place(inputs, files, check.scratch / f"expected-{name}", Variant())
        plain(place, options)
        expected[name] = dataset_bytes(place.output)
        for path, content in expected[name].items():
            assert str(check.scratch).encode() not in content, f"{path}: holds an absolute path"
    assert len(expected["llmc"]) > 8, "too few files to compare"

    def one(case: str, folder: Path) -> None:
        name, format_name = case.rsplit(", ", 1)
        variant = VARIANTS[name]
        place = Place(inputs, files, folder, variant)
        (variant.run or plain)(place, jobs[format_name])
        found = dataset_bytes(place.output)
        wanted = expected[format_name]
        differing = sorted(p for p in found.keys() | wanted.keys() if found.get(p) != wanted.get(p))
        assert not differing, f"these files differ: {', '.join(differing[:5])}"

    check.each(cases(check.fast), one)
    size = sum(len(content) for files in expected.values() for content in files.values())
    return (
        f"{check.cases - len(check.failures)} of {check.cases} runs identical, every byte of "
        f"{sum(map(len, expected.values()))} files ({size / 1e6:.0f} MB)"
    )
