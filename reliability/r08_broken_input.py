"""R8: inputs that are cut, flipped, lying or full of rows that are no text.

Every form of input (hostile_inputs.py) is broken in every way; whatever comes must be an error of
ours that names the file and the place, or a dataset in which every row is accounted for. Most
cases run in this process with no worker: a crash of pyarrow is then a dead case. Some run as the
real command, with workers, where exit code and stderr count.
"""

from __future__ import annotations

import functools
import os
import random
import re
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc

import tokenmill
from reliability import hostile_files
from reliability.command import tokenmill as run_command
from reliability.corpus import dataset_bytes
from reliability.hostile_inputs import FORMS, Form, Values, texts
from reliability.planted_rows import Planted, check_quarantine, plant
from reliability.scorecard import Check
from tokenmill import pipeline
from tokenmill.engines import run as engine_run
from tokenmill.engines.unit import UnitWorker, WorkerJob
from tokenmill.errors import BadRowError, InputError, SourceError, TokenmillError, printable
from tokenmill.output.files import JobFiles
from tokenmill.output.result import Result
from tokenmill.planning import sample as probe
from tokenmill.planning.estimate import make_estimate
from tokenmill.planning.make import make_plan
from tokenmill.planning.options import make_options
from tokenmill.settings import EncoderChoice
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder

ID = "R8"
PROMISE = "broken input"
MARK = (
    "100 truncations of each form, 3,000 flips, bad offsets, wrong magic, bad rows: "
    "no crash, no hang, rows read = written + dropped + quarantined"
)
CUTS = 100
FLIPS = 3000
BAD_ROW = re.compile(r"row \d+|document \d+")
PLACE = {
    "parquet": re.compile(r"row group \d+|footer"),
    "arrow": re.compile(r"record batch \d+|schema"),
}


def run(check: Check) -> str:
    Trial.check = check
    forms = list(FORMS)
    step = check.scale(1, 10)  # of the truncations: the last ones are the worst
    cuts = [f"cut {n} {form}" for form in forms for n in range(CUTS - 1, -1, -step)]
    if check.fast:
        cuts = [name for number, name in enumerate(cuts) if number % 5 == 0]
    flips = [f"flip {n} {forms[n % len(forms)]}" for n in range(check.scale(FLIPS, 106))]
    flat = [form for form in forms if form.startswith("arrow") and len(form.split()) == 3]
    words = [f"word {n} {flat[n % len(flat)]}" for n in range(check.scale(800, 40))]
    planted = [f"planted {n} {forms[n % len(forms)]}" for n in range(check.scale(530, 53))]
    tables = [form for form in forms if form.startswith("parquet")]
    plans = [f"plan {n} {tables[n % len(tables)]}" for n in range(check.scale(440, 22))]
    wrong = [f"wrong {name}" for name in hostile_files.WRONG]
    check.each([*cuts, *flips, *words, *planted, *plans, *wrong], _case, seconds=60)
    check.each(_command_names(check), _command, seconds=300)
    size = check.scale(300 << 20, 12 << 20)
    giants = [f"giant {name}" for name in hostile_files.GIANTS]
    check.each(giants, functools.partial(_giant, size=size), seconds=400)
    read = Trial.outcomes()
    return (
        f"{len(cuts):,} truncations of {len(forms)} forms, {len(flips):,} flips, {len(words):,} "
        f"bad Arrow words, {len(planted):,} files with bad rows, {len(wrong)} wrong files, "
        f"{len(plans)} plans, "
        f"{len(giants)} giants: {read['error']:,} errors that name the place, {read['read']:,} "
        f"read with every row accounted for, {len(check.failures)} failures"
    )


# --- one try ---------------------------------------------------------------------------------


class Trial:
    """One broken file and what `prepare` makes of it."""

    check: Check
    encoder: ExactEncoder | None = None  # opened once in each process

    def __init__(self, form: Form, content: bytes, folder: Path, written: int) -> None:
        self.form, self.content, self.folder, self.written = form, content, folder, written
        self.path = folder / f"x{form.suffix}"
        self.path.write_bytes(content)

    def prepare(self, out: str, **options: Any) -> Result | TokenmillError:
        try:
            return prepare_inline(self.path, self.folder / out, **self.form.options, **options)
        except TokenmillError as error:
            check_error(error, self.path.name, self.form.kind)
            return error

    def judge(self, *, must_fail: bool = False, same: bytes | None = None) -> None:
        """Stopped with the place named, or read with all its rows; then with bad rows aside."""
        outcome = self.prepare("out")
        if isinstance(outcome, BadRowError):
            self.note("error")
            outcome = self.prepare("out", on_bad_row="quarantine")
            again = self.prepare("again", on_bad_row="quarantine")
            assert not isinstance(outcome, BadRowError), outcome.message
            if isinstance(outcome, Result):
                assert outcome.manifest.counts["quarantined"], "nothing was set aside"
                resumed, fresh = self.folder / "out", self.folder / "again"
                assert dataset_bytes(resumed) == dataset_bytes(fresh), "resumed is not fresh"
            assert type(outcome) is type(again), f"{outcome}, from the start {again}"
        if not isinstance(outcome, Result):
            self.note("error")
            return
        self.note("read")
        assert not must_fail, "half a file was taken for a whole one"
        rows = self.form.rows(self.content, self.written)
        check_counts(outcome, rows)
        if same is not None:
            found = (self.folder / "out" / "train.bin").read_bytes()
            assert found == same, "other tokens, although a checksum covers the content"

    def note(self, outcome: str) -> None:
        """Counted over all processes: each writes a line."""
        with open(self.check.scratch / "outcomes", "a") as file:
            file.write(f"{outcome}\n")

    @classmethod
    def outcomes(cls) -> Counter[str]:
        path = cls.check.scratch / "outcomes"
        return Counter(path.read_text().split() if path.exists() else [])


def prepare_inline(inputs: Any, out: Path, **options: Any) -> Result:
    """Without workers, and with one encoder for all cases: opening it is most of their time."""
    setattr(engine_run, "UnitWorker", _with_open_encoder)  # noqa: B010
    usual = {"workers": 0, "val": "none", "allow_empty_split": True}
    return pipeline.prepare(inputs, out, **{**usual, **options})  # its hints name options


def _with_open_encoder(job: WorkerJob, files: JobFiles) -> UnitWorker:
    worker = UnitWorker(job, Trial.encoder, files)
    Trial.encoder = worker.session.encoder
    return worker


def check_error(error: TokenmillError, name: str, kind: str) -> None:
    told = f"{type(error).__name__}: {error.message}"
    assert isinstance(error, InputError | SourceError | BadRowError), told
    assert name in error.message, told
    assert error.hint, f"no hint: {told}"
    if isinstance(error, BadRowError):
        assert BAD_ROW.search(error.message), told
    elif isinstance(error, SourceError) and kind in PLACE:
        assert PLACE[kind].search(error.message), told


def check_counts(result: Result, rows: int) -> None:
    counts = result.manifest.counts
    assert counts["rows"] == counts["documents"] + counts["dropped"] + counts["quarantined"]
    assert counts["rows"] == rows, f"{counts['rows']} rows were read of {rows}"


# --- the ways to break a file ----------------------------------------------------------------


@functools.cache
def _clean(name: str) -> tuple[bytes, int]:
    values = texts()
    content = FORMS[name].write(values)
    return content, FORMS[name].rows(content, len(values))


@functools.cache
def _clean_tokens(name: str) -> bytes:
    """The tokens of the whole file, made where the scratch folder is."""
    folder = Trial.check.scratch / f"clean-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"x{FORMS[name].suffix}"
    path.write_bytes(_clean(name)[0])
    prepare_inline(path, folder / "out", overwrite=True, **FORMS[name].options)
    return (folder / "out" / "train.bin").read_bytes()


def _case(name: str, folder: Path) -> None:
    way, rest = name.split(" ", 1)
    if way == "wrong":
        hostile_files.check_wrong(rest, folder, prepare_inline, check_error)
        return
    number, form_name = rest.split(" ", 1)
    form, rng = FORMS[form_name], Trial.check.rng(name)
    if way == "planted":
        _planted(form, folder, rng, long=int(number) % 10 == 7)
        return
    whole, rows = _clean(form_name)
    same = None
    if way == "plan":
        _plan(Trial(form, _flipped(whole, rng), folder, rows))
        return
    if way == "cut":
        content = whole[: len(whole) * int(number) // CUTS]
    elif way == "flip":
        content = _flipped(whole, rng)
        same = _clean_tokens(form_name) if form.sealed else None
    else:
        content = _with_a_bad_word(whole, rng)
    trial = Trial(form, content, folder, rows)
    trial.judge(must_fail=way == "cut" and form.container, same=same)


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _with_a_bad_word(content: bytes, rng: random.Random) -> bytes:
    """Another number among the text's offsets, views or dictionary indices."""
    start, length, width = rng.choice(_text_words(content))
    at = start + width * rng.randrange(length // width)
    lowest = -(1 << (8 * width - 1))
    values = [-1, 0, 1, lowest, -lowest - 1, 1 << 20, 77, rng.randrange(lowest, -lowest)]
    form = {1: "<b", 4: "<i", 8: "<q"}[width]
    fitting = [value for value in values if lowest <= value < -lowest]
    changed = bytearray(content)
    struct.pack_into(form, changed, at, rng.choice(fitting))
    return bytes(changed)


@functools.lru_cache(maxsize=8)
def _text_words(content: bytes) -> list[tuple[int, int, int]]:
    """Start, length and width of what leads to the text in each batch of an Arrow file."""
    source = pyarrow.BufferReader(content)
    is_file = content.startswith(b"ARROW1")
    reader = pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)
    table = reader.read_all()
    found = []
    for chunk in table.column("text").chunks:
        kinds = [(chunk, 8 if pyarrow.types.is_large_string(chunk.type) else 4)]
        if pyarrow.types.is_dictionary(chunk.type):
            kinds = [(chunk.indices, 1), (chunk.dictionary, 4)]
        for array, width in kinds:
            buffer = array.buffers()[1]
            place = content.find(buffer.to_pybytes())
            if buffer.size >= width and place >= 0:
                found.append((place, buffer.size, width))
    assert found, "no offsets found"
    return found


def _planted(form: Form, folder: Path, rng: random.Random, long: bool) -> None:
    planted = plant(form, texts(), rng, long)
    trial = Trial(form, form.write(planted.values), folder, len(planted.values))
    name = trial.path.name
    stopped = trial.prepare("out")
    assert isinstance(stopped, BadRowError), f"not stopped by a bad row: {stopped}"
    word = "document" if form.kind == "text" else "row"
    assert f"{name}: {word} {next(iter(planted.bad))}" in stopped.message, stopped.message
    result = trial.prepare("out", on_bad_row="quarantine")
    fresh = trial.prepare("fresh", on_bad_row="quarantine")
    assert isinstance(result, Result), result.message
    assert isinstance(fresh, Result), fresh.message
    rows = form.rows(trial.content, len(planted.values))
    check_counts(result, rows)
    assert result.manifest.counts["quarantined"] == len(planted.bad)
    check_quarantine(folder / "out", {name: (form, planted)})
    assert dataset_bytes(folder / "out") == dataset_bytes(folder / "fresh")
    assert tokenmill.verify(folder / "out").ok
    good: Values = planted.good if rows > 1 else []
    assert tokens(folder / "out") == tokens_of_good(form, good, folder), "other tokens"
    trial.note("error")
    trial.note("read")


def tokens(out: Path) -> bytes:
    path = out / "train.bin"
    return path.read_bytes() if path.exists() else b""


def tokens_of_good(form: Form, good: Values, folder: Path) -> bytes:
    """What a file without the bad rows gives."""
    if not good:
        return b""
    clean = Trial(form, form.write(good), folder, len(good))
    outcome = clean.prepare("clean")
    assert isinstance(outcome, Result), outcome.message
    return tokens(folder / "clean")


def _plan(trial: Trial) -> None:
    """What `tokenmill plan` does with it: an estimate, or an error of ours."""
    probe.ExactEncoder = _open_encoder  # type: ignore[attr-defined,assignment]
    try:
        prepared = make_plan(trial.path, trial.folder / "out", make_options({"workers": 0}))
        make_estimate(prepared, probe_seconds=0.02)
    except TokenmillError as error:
        check_error(error, trial.path.name, trial.form.kind)


def _open_encoder(encoding: Encoding, choice: EncoderChoice) -> ExactEncoder:
    if Trial.encoder is None:
        Trial.encoder = ExactEncoder(encoding, choice)
    return Trial.encoder


# --- the real command ------------------------------------------------------------------------


def _command_names(check: Check) -> list[str]:
    """All forms in one run, and some broken files one by one, for 1 and 2 workers."""
    forms = list(FORMS)
    together = ["together columns and lines", "together text"]
    count = check.scale(40, 3)
    broken = [
        f"command {'cut' if n % 3 == 0 else 'flip'} {n} {forms[7 * n % len(forms)]}"
        for n in range(count)
    ]
    return together + broken


def _command(name: str, folder: Path) -> None:
    way, rest = name.split(" ", 1)
    if way == "together":
        _together(rest, folder)
        return
    how, number, form_name = rest.split(" ", 2)
    form, rng = FORMS[form_name], Trial.check.rng(name)
    whole, rows = _clean(form_name)
    cut = whole[: len(whole) * rng.randrange(CUTS) // CUTS]
    trial = Trial(form, cut if how == "cut" else _flipped(whole, rng), folder, rows)
    expected = trial.prepare("inline")
    options = ["--text-separator", form.separator] if form.separator else []
    done = command(
        "prepare", trial.path, "-o", folder / "out", "--val", "none",
        "--workers", 1 + int(number) % 2, *options,
    )  # fmt: skip
    if isinstance(expected, Result):
        assert done.returncode == 0, done.stderr
        assert dataset_bytes(folder / "out") == dataset_bytes(folder / "inline")
    else:
        assert done.returncode == expected.exit_code, done.stderr
        told = printable(expected.message, keep="\n\t")
        assert told in done.stderr, f"{told!r} is not in {done.stderr!r}"
        assert f"hint: {expected.hint}" in done.stderr
    trial.note("read" if isinstance(expected, Result) else "error")


def _together(which: str, folder: Path) -> None:
    """Every form with bad rows in one run: the same bytes for 0, 1 and 2 workers and resumed."""
    rng = Trial.check.rng(f"together {which}")
    files: dict[str, tuple[Form, Planted]] = {}
    inputs = folder / "in"
    inputs.mkdir()
    separated = which == "text"
    for number, form in enumerate(FORMS.values()):
        if (form.separator is not None) == separated and (form.kind == "text") == separated:
            name = f"{number:02d}{form.suffix}"
            files[name] = (form, plant(form, texts(), rng, long=number % 9 == 0))
            (inputs / name).write_bytes(form.write(files[name][1].values))
    first = next(iter(files))
    options: list[object] = ["prepare", *(inputs / name for name in files), "--val", "none"]
    separator = next(iter(files.values()))[0].separator
    options += ["--text-separator", separator] if separator else []
    stopped = command(*options, "-o", folder / "resumed", "--workers", 1)
    assert stopped.returncode == 1, stopped.stderr
    assert first in stopped.stderr, stopped.stderr
    runs = {}
    aside = ["--on-bad-row", "quarantine"]
    for out, workers in (("resumed", 2), ("two", 2), ("one", 1), ("none", 0)):
        done = command(*options, "-o", folder / out, "--workers", workers, *aside)
        assert done.returncode == 4, done.stderr
        runs[out] = dataset_bytes(folder / out)
        assert runs[out] == runs["resumed"], f"{out}: other bytes than resumed"
    check_quarantine(folder / "resumed", files)
    counts = tokenmill.open_dataset(folder / "resumed").manifest.counts
    assert counts["rows"] == sum(len(planted.values) for _, planted in files.values())
    assert counts["quarantined"] == sum(len(planted.bad) for _, planted in files.values())


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The real command; whatever it does, it shows no traceback."""
    done = run_command(*arguments)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2, 3, 4), f"exit {done.returncode}: {done.stderr}"
    return done


def _giant(name: str, folder: Path, size: int) -> None:
    rows = hostile_files.write_giant(name.removeprefix("giant "), folder, size)
    path = next(folder.iterdir())
    done = command("prepare", path, "-o", folder / "out", "--val", "none", "--memory", "8GB")
    assert done.returncode == 0, done.stderr
    counts = tokenmill.open_dataset(folder / "out").manifest.counts
    assert counts["rows"] == counts["documents"] == rows, counts
