"""R4: real processes killed at random moments, many times, and the same dataset in the end.

Workers are killed several times in one run: one of them, all at once, or the fork server (and all
with it). Coordinators are killed one after the other on one output. And workers are killed that
are all at the same unit, where the hunt for a row that kills must not convict a healthy one.
Shuffled and mixed jobs are among them: they are killed in both halves, and while units are merged.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from reliability import corpus
from reliability.corpus import durable_units
from reliability.processes import Command, finished, kill, same
from reliability.scorecard import Check
from tokenmill.inputs.segments import UnitId

ID = "R4"
PROMISE = "kill storm, real processes"
MARK = (
    "250 random SIGKILLs (200 workers, 50 coordinators): all identical, no orphan, nothing redone"
)

FORMATS = {
    "nanogpt": ["--val", "0.01"],
    "mixed": ["--mix", "MIX", "--shuffle", "--val", "0.01"],
    "llmc": ["--format", "llmc", "--shard-tokens", "300k", "--name", "x"],
    "shuffled": ["--shuffle", "--val", "0.01"],
    "llmc-document": [
        "--format", "llmc", "--shard-tokens", "200k", "--cut", "document", "--val", "docs:700",
        "--name", "x",
    ],
}  # fmt: skip
BY_KEY = ("shuffled", "mixed")
# Several ranges of keys, and runs that are merged first: of every size of input here.
SMALL_RANGES = {"TOKENMILL_RANGE_BYTES": "200000", "TOKENMILL_MAX_RUNS": "7"}
FIRST = {"workers": 0, "coordinator": 3, "one unit": 0}  # of the formats: a few cases meet all
METHODS = ["forkserver", "fork", "spawn"]
COUNTED = ("workers", "coordinators", "fork servers", "runs", "units kept", "probes")
KILLS_A_RUN = 4  # a unit that was killed five times is given up, and any may be hit by all
KILLS_A_CASE = 5


@dataclass
class Undisturbed:
    files: dict[str, bytes]
    seconds: float  # of a whole run
    working: float  # of these, since there were workers


def run(check: Check) -> str:
    os.environ.update(SMALL_RANGES)
    inputs = {"many": many_files(check.scratch / "many"), "one": one_unit(check.scratch / "one")}
    workers, coordinators = check.scale(38, 2), check.scale(10, 1)
    names = [
        *(f"workers {i}" for i in range(workers)),
        *(f"coordinator {i}" for i in range(coordinators)),
        *(f"one unit {i}" for i in range(check.scale(4, 1))),
    ]
    storms = {name: Storm(check, name) for name in names if check.wants(name)}
    clean = {
        storm.key: undisturbed(check, inputs[storm.inputs], storm) for storm in storms.values()
    }
    counts = check.scratch / "counts"
    counts.mkdir()

    def one(name: str, folder: Path) -> None:
        storm = storms[name]
        storm.hit(inputs[storm.inputs], clean[storm.key], folder)
        (counts / name).write_text(json.dumps(storm.counts))

    check.each(names, one)
    total = dict.fromkeys(COUNTED, 0)
    for path in counts.iterdir():
        for what, count in json.loads(path.read_bytes()).items():
            total[what] += count
    if not check.only and not check.failures:
        wanted = {"workers": check.scale(200, 10), "coordinators": check.scale(50, 5)}
        wanted["probes"] = check.scale(4, 0)  # else no hunt was met
        for what, least in wanted.items():
            if total[what] < least:
                check.fail("", f"only {total[what]} {what}, not {least}")
    return (
        f"{total['workers']} workers, {total['coordinators']} coordinators, "
        f"{total['fork servers']} fork servers killed in {total['runs']} runs; "
        f"{total['units kept']} durable units kept, {total['probes']} probes convicted no row, "
        f"{len(check.failures)} runs not identical"
    )


def many_files(folder: Path) -> list[Path]:
    """Sixteen units of every kind, and rows that must be set aside in two of them."""
    folder.mkdir()
    paths = []
    for i in range(16):
        texts: list[str | None] = [*corpus.documents(1000, f"storm {i}", 90)]
        match i % 4:
            case 0:
                texts[17 * i + 5] = None if i in (4, 12) else "not null"
                paths.append(corpus.write_parquet(folder / f"{i:02}.parquet", texts, 200))
            case 1:
                paths.append(corpus.write_arrow(folder / f"{i:02}.arrow", texts, 100))
            case _:
                suffix = ("jsonl", "jsonl.gz")[i % 2]
                known = [text or "" for text in texts]
                paths.append(corpus.write_jsonl(folder / f"{i:02}.{suffix}", known))
    write_mix(folder, paths)
    return paths


def write_mix(folder: Path, inputs: list[Path]) -> None:
    """Two sources: a part of the one is taken, and the other one more than once."""
    half = len(inputs) // 2
    text = 'unit = "documents"\ndocuments = 6000\n'
    for name, paths, rest in (
        ("some", inputs[:half], "weight = 1"),
        ("other", inputs[half:], "weight = 2\nmax_epochs = 3"),
    ):
        names = [path.name for path in paths]
        text += f"[source.{name}]\ninputs = {json.dumps(names)}\n{rest}\n" if names else ""
    (folder / "mix.toml").write_text(text)


def one_unit(folder: Path) -> list[Path]:
    """All workers that are killed are at the same unit."""
    folder.mkdir()
    path = corpus.write_parquet(folder / "a.parquet", corpus.documents(6000, "unit", 90), 500)
    write_mix(folder, [path])
    return [path]


def undisturbed(check: Check, inputs: list[Path], storm: Storm) -> Undisturbed:
    folder = check.scratch / f"clean {storm.key}"
    if folder.exists():
        return _known[storm.key]
    folder.mkdir()
    command = storm.command(inputs, folder / "o", "forkserver", folder)
    command.until(command.workers, "a worker was there")
    since = time.monotonic()
    assert command.wait() in storm.codes, command.said
    now = time.monotonic()
    files = corpus.dataset_bytes(folder / "o")
    _known[storm.key] = Undisturbed(files, now - command.began, now - since)
    return _known[storm.key]


_known: dict[str, Undisturbed] = {}


class Storm:
    """What a case's name and the seed decide: the job, the victims, the moments."""

    def __init__(self, check: Check, name: str) -> None:
        self.kind, _, number = name.rpartition(" ")
        self.rng: random.Random = check.rng(name)
        # In turn, so that few cases meet all of them.
        self.format = list(FORMATS)[(int(number) + FIRST[self.kind]) % len(FORMATS)]
        self.method = METHODS[(int(number) // 2) % len(METHODS)]
        self.encoder = self.rng.choice(["auto", "reference"])
        self.inputs = "many" if self.kind != "one unit" else "one"
        if self.inputs == "one":
            self.encoder = "reference"  # slow enough to be killed four times
        self.key = f"{self.inputs} {self.format}"
        self.mix = check.scratch / self.inputs / "mix.toml"
        self.codes = (4,) if self.inputs == "many" else (0,)
        self.counts = dict.fromkeys(COUNTED, 0)

    def options(self, method: str) -> list[str]:
        return [
            "--workers", "2" if self.inputs == "many" else "1", "--start-method", method,
            "--encoder", self.encoder, "--on-bad-row", "quarantine", "--quiet",
            *(str(self.mix) if word == "MIX" else word for word in FORMATS[self.format]),
        ]  # fmt: skip

    def start(self, inputs: list[Path], output: Path, folder: Path) -> Command:
        self.counts["runs"] += 1
        return self.command(inputs, output, self.method, folder)

    def command(self, inputs: list[Path], output: Path, method: str, folder: Path) -> Command:
        named = [] if self.format == "mixed" else inputs
        return Command(named, output, self.options(method), folder)

    def hit(self, inputs: list[Path], clean: Undisturbed, folder: Path) -> None:
        if self.kind == "coordinator":
            self.hit_coordinators(inputs, clean, folder)
        else:
            self.hit_workers(inputs, clean, folder)

    def hit_workers(self, inputs: list[Path], clean: Undisturbed, folder: Path) -> None:
        kills = 0
        while kills < KILLS_A_CASE:
            output = folder / f"o{self.counts['runs']}"
            command = self.start(inputs, output, folder)
            wanted = min(KILLS_A_RUN, KILLS_A_CASE - kills)
            command.until(command.workers, "a worker was there")
            hits = 0
            while command.running and hits < wanted:
                pause = clean.working / wanted if self.inputs == "many" else clean.working
                time.sleep(self.rng.uniform(0, pause))
                hits += self.strike(command)
            kills += hits
            record = command.check(clean.files, self.codes)
            self.counts["probes"] += int(str(record["probes"]))
            shutil.rmtree(output)

    def strike(self, command: Command) -> int:
        """One blow: a worker, all of them, or the fork server. How many of these it hit."""
        workers, server = command.workers(), command.fork_server()
        whom = self.rng.random()
        if whom < 0.1 and server is not None:
            self.counts["fork servers"] += kill(server)
            return 0 if not workers else 1
        victims = workers if whom < 0.2 else self.rng.sample(workers, min(1, len(workers)))
        killed = sum(kill(worker) for worker in victims)
        self.counts["workers"] += killed
        return min(1, killed)

    def hit_coordinators(self, inputs: list[Path], clean: Undisturbed, folder: Path) -> None:
        output, kills, leave_time = folder / "o", 0, True
        while True:
            before = durable_units(output) if not finished(output) else None
            command = self.start(inputs, output, folder)
            if kills < KILLS_A_CASE:
                self.wait_for_moment(command, clean)
                if self.kill_coordinator(command):
                    kills += 1
                    leave_time = self.rng.random() < 0.7
                    self.check_killed(command, before, leave_time)
                    continue
            record = command.check(clean.files, self.codes) if before is not None else None
            if record is not None:
                kept = corpus.resumed(record)
                assert kept == len(before or ()), (
                    f"{len(before or ())} units were durable, {kept} resumed"
                )
                self.counts["units kept"] += len(before or ())
            else:
                assert command.wait() in self.codes, command.said
                command.no_orphan()
                same(output, clean.files)
            if kills >= KILLS_A_CASE:
                return
            shutil.rmtree(output)

    def wait_for_moment(self, command: Command, clean: Undisturbed) -> None:
        """Any time; or soon after some units more have become durable, whatever that takes."""
        if self.rng.random() < 0.4:
            time.sleep(self.rng.uniform(0.02, clean.seconds))
            return
        enough = self.rng.randint(1, 40 if self.format in BY_KEY else 16)
        later = self.rng.uniform(0, 0.1)
        while command.running and not finished(command.output):
            if len(durable_units(command.output)) >= enough:
                break
            time.sleep(0.005)
        time.sleep(later)

    def kill_coordinator(self, command: Command) -> bool:
        """Now and then together with its workers or its fork server."""
        workers, server = command.workers(), command.fork_server()
        whom = self.rng.random()
        if not command.running:
            return False
        if whom < 0.15 and server is not None:
            self.counts["fork servers"] += kill(server)
        elif whom < 0.3:
            self.counts["workers"] += sum(map(kill, workers))
        alone = whom >= 0.15 and server is not None
        kill(command.pid)
        if command.wait() != -9:
            return False
        self.counts["coordinators"] += 1
        if alone:
            command.no_orphan()
            command.no_temporary_files()
        return True

    def check_killed(self, command: Command, before: set[UnitId] | None, leave_time: bool) -> None:
        """What is durable stays so, nobody sees half a dataset, nobody lives on."""
        if leave_time:  # else the next run meets those that are about to end
            command.no_orphan()
        if before is not None and not finished(command.output):
            lost = before - durable_units(command.output)
            assert not lost, f"durable units were lost: {lost}"
            visible = [p.name for p in command.output.glob("*") if p.name != ".tokenmill"]
            committing = (command.output / ".tokenmill/commit.json").exists()
            assert committing or not visible, f"visible before the commit: {visible}"
