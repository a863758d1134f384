"""R9: a finished dataset with one change to it. `verify` must find it and name the file.

Files are flipped, cut, made longer, swapped, removed and added. Beside `verify`, `inspect` and the
loader see each change: they may show what is there, or say in words of ours what is wrong, but
never end in a traceback or by a signal. Extra files are a problem where a trainer's glob takes
them or where they bear a name of ours; others are none of our business. run.json is about the run
and not part of the data: nothing that is done to it makes a dataset wrong, or stops anything.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenmill
from reliability import corpus
from reliability.command import in_process as command
from reliability.scorecard import Check
from tokenmill.errors import TokenmillError

ID = "R9"
PROMISE = "broken output"
MARK = "2,000 bit flips, 200 truncations, 50 swapped, missing or extra files: verify finds all"
FLIPS, CUTS, MOVES = 2000, 200, 50
INSPECTED = 25  # one change in so many is shown as a document: that loads the vocabulary

# What a dataset is made with; the first two have bad rows aside, the last has none.
DATASETS: dict[str, dict[str, Any]] = {
    "nanogpt": {"val": 0.1, "on_bad_row": "quarantine"},
    "llmc": {"format": "llmc", "shard_tokens": 1500, "on_bad_row": "quarantine"},
    "wide": {"val": "none", "tokenizer": "cl100k_base"},
}
MOVED = ["swapped", "missing", "extra", "other", "folder"]
RUN_RECORDS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"sources": "\xff\xfe"}',
    "null": b"null",
    "a list": b"[1, 2]",
    "a string": b'"sources"',
    "sources a list": b'{"sources": ["a.parquet"]}',
    "sources numbers": b'{"sources": {"a.parquet": 1, "b.jsonl": null}}',
    "times of another kind": b'{"sources": {"a.parquet": {"mtime_ns": "soon", "path": 7}}}',
    "paths with a zero": b'{"sources": {"a.parquet": {"path": "a\\u0000b", "mtime_ns": 1}}}',
    "everything of another kind": b'{"finished": {"a": [1]}, "seconds": "x", "packages": 3, '
    b'"tokenizer": ["gpt2"], "sources": null}',
    "nested": b"[" * 100_000,
    "long": b"x" * (1 << 20),
}


def run(check: Check) -> str:
    Output.check = check
    source = check.scratch / "datasets"
    make_datasets(source)
    kinds = list(DATASETS)
    flips = [f"flip {n} {kinds[n % 3]}" for n in range(check.scale(FLIPS, 200))]
    cuts = [f"cut {n} {kinds[n % 3]}" for n in range(check.scale(CUTS, 30))]
    moves = [f"{MOVED[n % len(MOVED)]} {n} {kinds[n % 3]}" for n in range(check.scale(MOVES, 15))]
    records = [f"run.json {name}" for name in RUN_RECORDS]
    records += [f"run.json flip {n}" for n in range(check.scale(100, 10))]
    check.each([*flips, *cuts, *moves, *records], _case, seconds=60)
    bad = len(check.failures)
    changes = sum(map(check.wants, [*flips, *cuts, *moves]))
    missed = sum(not failure.case.startswith("run.json") for failure in check.failures)
    return (
        f"{changes - missed:,} of {changes:,} changes found ({len(flips):,} flips, {len(cuts)} cut "
        f"or longer, {len(moves)} swapped, missing or extra); {len(records)} damaged run.json: "
        f"nothing stopped; {bad} failures"
    )


def make_datasets(folder: Path) -> None:
    inputs = corpus.mixed(folder / "in", 40)
    with open(inputs[1], "ab") as lines:
        lines.write(b'{"text": null}\n{broken\n{"text": "\xff"}\n')
    good = [path for path in inputs if path != inputs[1]]
    for name, options in DATASETS.items():
        made = inputs if options.get("on_bad_row") else good
        tokenmill.prepare(made, folder / name, workers=0, quiet=True, **options)
        assert tokenmill.verify(folder / name).ok


class Output:
    """A dataset of this process's own, to be changed and put right again."""

    check: Check

    def __init__(self, name: str) -> None:
        original = self.check.scratch / "datasets" / name
        self.name = name
        self.root = self.check.scratch / f"{name}-{os.getpid()}" / name
        shutil.copytree(original, self.root)
        self.files = [path for path in corpus.dataset_bytes(self.root) if path != "run.json"]

    @classmethod
    @functools.cache
    def of(cls, name: str, process: int) -> Output:
        del process  # a forked process has folders of its own
        return cls(name)

    @contextlib.contextmanager
    def restored(self) -> Iterator[Path]:
        """Afterwards it is as it was."""
        before = {path: (self.root / path).read_bytes() for path in (*self.files, "run.json")}
        try:
            yield self.root
        finally:
            shutil.rmtree(self.root)
            for path, content in before.items():
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).write_bytes(content)


def _case(name: str, folder: Path) -> None:
    way, rest = name.split(" ", 1)
    if way == "run.json":
        _run_record(rest, Output.check.rng(name))
        return
    number, kind = rest.split(" ", 1)
    rng = Output.check.rng(name)
    output = Output.of(kind, os.getpid())
    with output.restored() as root:
        names = change(way, output, rng, folder)
        code, told = command("verify", root)
        assert code == 3, f"exit {code} after {names}: {told}"
        named = [path for path in names if f"{path}: " in told]
        assert named, f"none of {names} is named: {told}"
        code, told = command("verify", root, "--json")
        assert code == 3, told
        assert json.loads(told)["problems"], told
        look_around(root, rng, with_vocabulary=int(number) % INSPECTED == 0)
    if int(number) % 50 == 0:
        assert command("verify", output.root)[0] == 0, "the case did not put it right again"


# --- changes ---------------------------------------------------------------------------------


def change(way: str, output: Output, rng: random.Random, folder: Path) -> list[str]:
    """Change the dataset; returns the files of which at least one must be named."""
    root = output.root
    path = rng.choice(output.files)
    content = (root / path).read_bytes()
    if way == "flip":
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (root / path).write_bytes(changed)
    elif way == "cut":
        if rng.random() < 0.2:
            (root / path).write_bytes(content + rng.randbytes(rng.randint(1, 100)))
        else:
            (root / path).write_bytes(content[: rng.randrange(len(content))])
    elif way == "swapped":
        others = [other for other in output.files if (root / other).read_bytes() != content]
        alike = [other for other in others if Path(other).suffix == Path(path).suffix]
        other = rng.choice(alike or others)
        (root / path).rename(folder / "aside")
        (root / other).rename(root / path)
        (folder / "aside").rename(root / other)
        return [path, other]
    elif way == "missing":
        (root / path).unlink()
    elif way == "other":
        return [_from_elsewhere(output, rng)]
    elif way == "folder":
        (root / path).unlink()
        (root / path).mkdir()
    else:
        return [_extra(output, rng)]
    return [path]


def _extra(output: Output, rng: random.Random) -> str:
    """A file more: one that the trainer would read, or that bears a name of ours."""
    names = ["index/val.ends", "index/pieces.old", "index/more"]
    if output.name == "llmc":
        names += ["llmc_train_000099.bin", "llmc_train_.bin", "llmc_val_000001.bin"]
    elif output.name == "wide":
        names += ["val.bin", "quarantine.jsonl"]
    name = rng.choice([name for name in names if name not in output.files])
    (output.root / name).write_bytes(rng.choice([b"", rng.randbytes(3000)]))
    return name


def _from_elsewhere(output: Output, rng: random.Random) -> str:
    """A file of another dataset in its place: whole in itself, but not of this one."""
    kinds = [kind for kind in DATASETS if kind != output.name]
    other = output.check.scratch / "datasets" / rng.choice(kinds)
    shared = [path for path in output.files if (other / path).exists()]
    path = rng.choice(
        [
            path
            for path in shared
            if path != "manifest.json"  # with that, it is the other files that are wrong
            and (other / path).read_bytes() != (output.root / path).read_bytes()
        ]
    )
    shutil.copyfile(other / path, output.root / path)
    return path


# --- who else looks --------------------------------------------------------------------------


def look_around(root: Path, rng: random.Random, with_vocabulary: bool) -> None:
    """`inspect` and the loader: what is there, or an error of ours."""
    for more in ([], ["--json"]):
        code, told = command("inspect", root, *more)
        assert code in (0, 2, 3), f"inspect: exit {code}: {told}"
        assert code == 0 or "error: " in told, told
    if with_vocabulary:
        where = rng.choice(["--document", "--token"])
        code, told = command("inspect", root, where, rng.randrange(20))
        assert code in (0, 2, 3), f"inspect {where}: exit {code}: {told}"
        code, told = command("verify", root, "--deep", "--sample", 5)
        assert code == 3, f"verify --deep: exit {code}: {told}"
    with contextlib.suppress(TokenmillError):
        read_all(root)


def read_all(root: Path) -> None:
    """Every token and every document, as a trainer would."""
    dataset = tokenmill.open_dataset(root)
    for split in dataset.values():
        with contextlib.suppress(TokenmillError):
            assert len(split.tokens[:]) == len(split.tokens)
        for number in range(len(split.documents)):
            with contextlib.suppress(TokenmillError):
                split.documents[number].sum()
            with contextlib.suppress(TokenmillError):
                split.documents.source(number)
        for token in range(0, len(split.tokens), 97):
            with contextlib.suppress(TokenmillError):
                split.documents.at(token)


def _run_record(what: str, rng: random.Random) -> None:
    """Whatever is in run.json: the dataset is right, can be read, and a second run is done."""
    output = Output.of("nanogpt", os.getpid())
    with output.restored() as root:
        path = root / "run.json"
        if what in RUN_RECORDS:
            path.write_bytes(RUN_RECORDS[what])
        else:
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
        for arguments in (["verify"], ["inspect"], ["inspect", "--json", "--document", "0"]):
            code, told = command(*arguments, root)
            assert code == 0, f"{arguments}: exit {code}: {told}"
        code, told = command("verify", root, "--deep", "--sample", 5)
        assert code in (0, 2), f"verify --deep: exit {code}: {told}"
        sources = output.check.scratch / "datasets" / "in"
        code, told = command("verify", root, "--deep", "--sample", 5, "--source-root", sources)
        assert code == 0, f"verify --deep --source-root: exit {code}: {told}"
        inputs = sorted(sources.iterdir())
        result = tokenmill.prepare(inputs, root, workers=0, quiet=True, **DATASETS["nanogpt"])
        assert result.already_done
