"""R14: an output is bound to its plan: another plan is refused, and the difference is shown.

Every field of PlanSettings has a change here, and every field of RunSettings: a new field without
one fails the row. A refused command must change nothing, and the old one must still go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import tokenmill
from reliability.command import in_process
from reliability.corpus import dataset_bytes, documents
from reliability.scorecard import Check
from tokenmill.errors import RefusedError, TokenmillError
from tokenmill.inputs import segments
from tokenmill.inputs.opening.identify import FINGERPRINT_BLOCK, FINGERPRINT_BYTES
from tokenmill.output.durability import UnitLog
from tokenmill.output.workspace import Workspace
from tokenmill.planning import options as option_module
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.settings import Layout, PlanSettings, RunSettings, Val
from tokenmill.system.store import PlacedFolder
from tokenmill.tokenizer.bundled import bundled_ranks_file
from tokenmill.tokenizer.files import find_encoding

ID = "R14"
PROMISE = "changed job refused"
MARK = (
    "every plan setting, the tokenizer, the input's bytes and list: exit 2 and the difference; "
    "every run setting stays free"
)

BASE: dict[str, Any] = {
    "format": "llmc", "name": "x", "shard_tokens": 2000, "val": "shard", "eot_token": "50256",
    "pattern": "gpt2", "workers": 0,
}  # fmt: skip
OWN_RANKS = "own.tiktoken"

# For each plan setting the options that change it (and, with some, others that hang on it).
PLAN_CHANGES: dict[str, dict[str, Any]] = {
    "text_column": {"text_column": "other"},
    "text_separator": {"text_separator": r"\n\n"},
    "may_cut": {"min_tokens": 2},
    "tokenizer": {"tokenizer": "p50k_base", "pattern": ""},
    "tokenizer_sha256": {"tokenizer": "swapped/" + OWN_RANKS},
    "pattern": {"pattern": "cl100k"},
    "eot_id": {"eot_token": "50255"},
    "bos_id": {"bos_token": "50256"},
    "vocab_size": {"tokenizer": "p50k_base", "pattern": ""},
    "format": {"format": "nanogpt", "shard_tokens": None, "val": "docs:3"},
    "dtype": {"dtype": "uint32"},
    "eot": {"eot": "append"},
    "cut": {"cut": "document"},
    "shard_tokens": {"shard_tokens": 2001},
    "min_shard_tokens": {"min_shard_tokens": 1500, "last_shard": "merge"},
    "last_shard": {"last_shard": "refuse", "min_shard_tokens": 1},
    "compression": {"format": "mds", "compression": "zstd"},
    "more": {"format": "llmc,datatrove"},
    "val": {"val": "tokens:500"},
    "seed": {"seed": 1},
    "name": {"name": "y"},
    "drop_empty": {"drop_empty": True},
    "min_tokens": {"min_tokens": 3},
    "max_tokens": {"max_tokens": 90},
    "limit_docs": {"limit_docs": 20},
    "limit_tokens": {"limit_tokens": 2000},
    "text_template": {"text": "{text} {other}"},
    "where": {"where": "other != 'x'"},
    "shuffle": {"shuffle": True},
    "mixture": {"mix": "mix.toml", "shuffle": True, "val": "0.2"},
}
MIX = "[source.all]\ninputs = ['in/a.jsonl', 'in/b.jsonl', 'in/c.txt']\nweight = 1\n"
OF_COLUMNS = ("text_template", "where")  # refused for text files, so these are not given


@dataclass
class Free:
    """A run setting changed: by options, by the environment, or where neither knows it."""

    options: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, Any] = field(default_factory=dict)


RUN_CHANGES: dict[str, Free] = {
    "workers": Free({"workers": 2}),
    "memory": Free({"memory": "777MB"}),
    "start_method": Free({"workers": 1, "start_method": "spawn"}),
    "encoder": Free({"encoder": "reference"}),
    "encoder_check": Free({"encoder_check": False}),
    "on_bad_row": Free({"on_bad_row": "quarantine"}),
    "allow_empty_split": Free({"allow_empty_split": True}),
    "overwrite": Free({"overwrite": True}),
    "keep_downloads": Free({"keep_downloads": False}),
    "downloads": Free({"downloads": 1}),
    "scratch": Free({"scratch": tempfile.gettempdir()}),
    "reuse": Free({"reuse": "old"}),
    "sync_seconds": Free(knobs={"sync_seconds": 0.0}),
    "sync_bytes": Free(knobs={"sync_bytes": 1}),
    "stuck_seconds": Free(knobs={"stuck_seconds": 5.0}),
    "make_bytes": Free({"workers": 1}, knobs={"make_bytes": 0.0}),
}


class Job:
    """Inputs and a tokenizer of its own in a folder, so that a case may change them."""

    def __init__(self, folder: Path, large: bool = False) -> None:
        self.folder, self.output = folder, folder / "o"
        inputs = folder / "in"
        inputs.mkdir()
        texts = documents(60, "r14")
        self.paths = [inputs / "a.jsonl", inputs / "b.jsonl", inputs / "c.txt"]
        self.paths[0].write_text(_lines(texts[:30]))
        self.paths[1].write_text(_lines(texts[30:]))
        self.paths[2].write_text("\n\n".join(texts[:10]))
        if large:
            lines = _lines(documents(100, "r14 large", 400)).encode()
            copies = FINGERPRINT_BYTES * 3 // 2 // len(lines) + 1
            self.paths.insert(1, inputs / "b-large.jsonl")
            self.paths[1].write_bytes(lines * copies)
        self.ranks = folder / OWN_RANKS
        ranks = b"".join(bundled_ranks_file("gpt2").splitlines(keepends=True)[:3000])
        self.ranks.write_bytes(ranks)
        (folder / "swapped").mkdir()
        (folder / "swapped" / OWN_RANKS).write_bytes(swapped_ranks(ranks))
        (folder / "mix.toml").write_text(MIX)

    def options(self, **changes: Any) -> dict[str, Any]:
        made = {**BASE, "tokenizer": str(self.ranks), **changes}
        if made["tokenizer"].startswith("swapped/"):
            made["tokenizer"] = str(self.folder / made["tokenizer"])
        if "mix" in made:
            made["mix"] = str(self.folder / made["mix"])
        if "reuse" in made:
            made["reuse"] = str(self.folder / made["reuse"])
            if not os.path.exists(made["reuse"]):
                tokenmill.prepare(self.paths, made["reuse"], quiet=True, **self.options())
        return made

    def settings(self, **changes: Any) -> dict[str, Any]:
        return plan_settings(make_options(self.options(**changes)), self.output).to_dict()

    def command(self, *, inputs: list[Path] | None = None, **changes: Any) -> tuple[int, str]:
        inputs = self.paths if inputs is None else inputs
        arguments: list[object] = ["prepare", *inputs, "-o", self.output, "--quiet"]
        for name, value in self.options(**changes).items():
            flag = "--" + name.replace("_", "-")
            if value is False:
                arguments.append("--no-" + name.replace("_", "-"))
            elif value is not None and value != "":
                arguments += [flag] if value is True else [flag, value]
        return in_process(*arguments)


def _lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": t, "other": t[::-1]}) + "\n" for t in texts)


def swapped_ranks(ranks: bytes) -> bytes:
    """The same tokens, two ranks exchanged: as long, as valid, and another tokenizer."""
    lines = ranks.splitlines()
    first, second = lines[300].split(), lines[301].split()
    lines[300], lines[301] = b" ".join((second[0], first[1])), b" ".join((first[0], second[1]))
    return b"\n".join(lines) + b"\n"


# --- what a crash leaves behind --------------------------------------------------------------


class StopError(TokenmillError):
    """Thrown in where a crash is to be."""


@contextlib.contextmanager
def stopped(owner: Any, name: str, when: Callable[..., bool]) -> Iterator[None]:
    real = getattr(owner, name)

    def stop(*arguments: Any, **kw: Any) -> Any:
        if when(*arguments):
            raise StopError("that is enough")
        return real(*arguments, **kw)

    with mock.patch.object(owner, name, stop):
        try:
            yield
        except StopError:
            return
    raise AssertionError(f"never came to {name}")


def finished(job: Job) -> None:
    code, printed = job.command()
    assert code == 0, printed


def _stop_at(job: Job, owner: Any, name: str, when: Callable[..., bool]) -> None:
    with stopped(owner, name, when):
        tokenmill.prepare(job.paths, job.output, quiet=True, **job.options())


def unfinished(job: Job) -> None:
    """Two units are durable."""
    _stop_at(job, UnitLog, "written", lambda books, _: books.encoded_units == 2)
    assert (job.output / ".tokenmill" / "journal").exists()


def decided(job: Job) -> None:
    """The commit is decided, and no file has its name yet."""
    _stop_at(job, PlacedFolder, "publish", lambda *_: True)
    assert (job.output / ".tokenmill" / "commit.json").exists()


def not_cleaned(job: Job) -> None:
    """The dataset is there, its work folder too."""
    _stop_at(job, Workspace, "remove_work", lambda _: True)
    assert (job.output / "manifest.json").exists()
    assert (job.output / ".tokenmill" / "plan.json").exists()


STATES = {f.__name__: f for f in (unfinished, finished, decided, not_cleaned)}


# --- changes of the inputs -------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    """Another letter at a place, the same size, and the time as it was: only content tells."""
    times = os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns
    content = bytearray(path.read_bytes())
    at = content.index(b" the ", at) + 1  # a word of the text: the other column has it backwards
    content[at] = ord("T")
    path.write_bytes(content)
    os.utime(path, ns=times)


def byte_changed(job: Job) -> str:
    flip(job.paths[0], job.paths[0].stat().st_size // 2)
    return "a.jsonl: content changed (same size)"


def byte_changed_large(job: Job) -> str:
    """In the last block: both ends of a large file are always looked at."""
    flip(job.paths[1], job.paths[1].stat().st_size - FINGERPRINT_BLOCK + 1)
    return "b-large.jsonl: content changed (same size)"


def touched_large(job: Job) -> str:
    """Between two blocks that are looked at: the time tells, or the units that come out."""
    path = job.paths[1]
    blocks = FINGERPRINT_BYTES // FINGERPRINT_BLOCK
    first = (path.stat().st_size - FINGERPRINT_BLOCK) // (blocks - 1)
    assert first > FINGERPRINT_BLOCK + 2000, "the blocks leave no gap"
    flip(path, FINGERPRINT_BLOCK + 500)
    os.utime(path)
    return "b-large.jsonl"


def appended(job: Job) -> str:
    size = job.paths[0].stat().st_size
    with open(job.paths[0], "a") as file:
        file.write(_lines(["one more"]))
    return f"a.jsonl: {size} bytes -> {job.paths[0].stat().st_size} bytes"


def added(job: Job) -> str:
    job.paths.append(job.paths[0].with_name("d.jsonl"))
    job.paths[-1].write_text(_lines(["more"]))
    return "input added: d.jsonl"


def removed(job: Job) -> str:
    del job.paths[1]
    return "input no longer given: b.jsonl"


def renamed(job: Job) -> str:
    job.paths[1] = job.paths[1].rename(job.paths[1].with_name("bb.jsonl"))
    return "input added: bb.jsonl"


def reordered(job: Job) -> str:
    job.paths[:2] = job.paths[1::-1]
    return "inputs in another order"


def exchanged(job: Job) -> str:
    """The content of two files exchanged under their names."""
    first, second = (path.read_bytes() for path in job.paths[:2])
    job.paths[0].write_bytes(second)
    job.paths[1].write_bytes(first)
    return f"a.jsonl: {len(first)} bytes -> {len(second)} bytes"


def tokenizer_changed(job: Job) -> str:
    """The file under the same name holds another vocabulary."""
    content = job.ranks.read_bytes()
    job.ranks.write_bytes(swapped_ranks(content))
    return "tokenizer_sha256: "


def cut_rule(job: Job) -> str:
    """Another version of ours that cuts the inputs by another rule: see `input_case`."""
    return "cut rule: "


INPUT_CHANGES = (
    byte_changed, byte_changed_large, touched_large, appended, added, removed, renamed, reordered,
    exchanged, tokenizer_changed, cut_rule,
)  # fmt: skip
HARMLESS = ("moved", "given as a folder", "touched")


# --- the cases -------------------------------------------------------------------------------


def shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return str(msgspec.convert(value, Val))
    if isinstance(value, list | tuple):
        return ", ".join(one["format"] for one in value) or "none"
    if isinstance(value, str) and not (value and value.isprintable()):
        return repr(value)
    return str(value)


def refuse_plan(job: Job, name: str) -> list[str]:
    """What must be printed when a plan setting is changed."""
    if name == "mixture":  # its settings are read with its file, and are a table of their own
        return ["shuffle: not set -> True", "mixture: not set -> shares all"]
    old, new = job.settings(), job.settings(**PLAN_CHANGES[name])
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    assert name in changed, f"the change for {name} does not change it"
    return [f"{key}: {shown(old.get(key))} -> {shown(new.get(key))}" for key in changed]


def refused(job: Job, wanted: list[str], **changes: Any) -> None:
    """Exit 2 and the difference; and not a byte has changed."""
    before = dataset_bytes(job.output)
    code, printed = job.command(**changes)
    assert code == RefusedError.exit_code, f"exit {code}: {printed[-600:]}"
    missing = [line for line in wanted if line not in printed]
    assert not missing, f"not shown: {missing}; printed was: {printed[-900:]}"
    assert "--overwrite" in printed, "the way out is not shown"
    after = dataset_bytes(job.output)
    for kept in (before, after):
        kept.pop(".tokenmill/lock", None)  # names the process that held it last
    if before != after:
        _differ(before, after)


def _differ(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    raise AssertionError(f"these files changed: {', '.join(names)}")


def ends_as(job: Job, expected: dict[str, bytes], **changes: Any) -> None:
    code, printed = job.command(**changes)
    assert code == 0, f"exit {code}: {printed[-600:]}"
    found = dataset_bytes(job.output)
    if found != expected:
        _differ(expected, found)


def plan_case(job: Job, name: str, expected: dict[str, bytes]) -> None:
    inputs = job.paths[:2] if name in OF_COLUMNS else [] if name == "mixture" else None
    refused(job, refuse_plan(job, name), inputs=inputs, **PLAN_CHANGES[name])
    ends_as(job, expected)


def input_case(job: Job, name: str) -> None:
    change = next(c for c in INPUT_CHANGES if c.__name__ == name)
    wanted = change(job)
    if change is touched_large:  # found by doing units again: the work folder may differ
        code, printed = job.command()
        assert code == RefusedError.exit_code, f"exit {code}: {printed[-600:]}"
        assert wanted in printed, printed
        assert "--overwrite" in printed, "the way out is not shown"
    else:
        rule = segments.CUT_RULE + (change is cut_rule)
        with mock.patch.object(segments, "CUT_RULE", rule):
            refused(job, [wanted])
    code, printed = job.command(overwrite=True)
    assert code == 0, f"--overwrite is the way out, but: {printed[-600:]}"


def free_case(job: Job, name: str, expected: dict[str, bytes]) -> None:
    """A run setting's change resumes what is durable, and ends identical."""
    free = RUN_CHANGES[name]
    with mock.patch.object(option_module, "timer_knobs", return_value=free.knobs):
        made = option_module.run_settings(
            make_options(job.options(**free.options)),
            _budget(job, **free.options),
            find_encoding(str(job.ranks), BASE["pattern"]),
        )
        plain = RunSettings(workers=0, memory=_budget(job).memory)
        assert getattr(made, name) != getattr(plain, name), f"the change of {name} changes nothing"
        ends_as(job, expected, **free.options)


def _budget(job: Job, **changes: Any) -> Any:
    from tokenmill.amounts import parse_bytes
    from tokenmill.system.memory import fit_budget

    made = job.options(**changes)
    memory = made.get("memory")
    return fit_budget(made["workers"], parse_bytes(memory) if memory else None)


def harmless_case(job: Job, name: str, expected: dict[str, bytes]) -> None:
    """What does not change the job must not be refused either."""
    if name == "moved":
        there = job.folder / "moved"
        there.mkdir()
        job.paths = [path.rename(there / path.name) for path in job.paths]
        ends_as(job, expected)
    elif name == "touched":
        for path in job.paths:
            os.utime(path, (7, 7))
        ends_as(job, expected)
    else:
        names = [path.parent / f"*{path.suffix}" for path in (job.paths[0], job.paths[-1])]
        code, printed = job.command(inputs=names)
        assert code == 0, printed
        assert dataset_bytes(job.output) == expected


OF_EXPORT = {"only", "reshuffle"}  # no option of `prepare` sets them
OF_CLUSTERS = {"engine", "ray_address", "max_actors"}  # R19 changes them


def run(check: Check) -> str:
    from reliability import changed_orders

    plan_fields = {*PlanSettings.__struct_fields__, *Layout.__struct_fields__, "more"}
    for fields, changes in (
        (plan_fields - {"layouts"} - OF_EXPORT, PLAN_CHANGES),
        (set(RunSettings.__struct_fields__) - OF_CLUSTERS, RUN_CHANGES),
    ):
        unknown = fields ^ set(changes)
        if unknown:
            check.fail("", f"no change is tried for {sorted(unknown)}")
    with check.case("the undisturbed run") as folder:
        job = Job(folder)
        finished(job)
        expected = dataset_bytes(job.output)
        assert any(name.startswith("x_train_") for name in expected)

    parts: dict[str, list[str]] = {
        "plan": list(PLAN_CHANGES),
        "input": [change.__name__ for change in INPUT_CHANGES],
        "free": list(RUN_CHANGES),
        "harmless": list(HARMLESS),
    }
    states = list(STATES)
    names = [
        f"{state} | {part} | {name}"
        for part, changes in parts.items()
        for number, name in enumerate(changes)
        for state in ([states[number % 2]] if check.fast else states)
    ]

    by_key = changed_orders.names(check.fast, check.seed)
    with check.case("undisturbed jobs by key") as folder:
        ordered = changed_orders.undisturbed(folder)

    def one(case: str, folder: Path) -> None:
        if case in by_key:
            changed_orders.case(case, folder, ordered)
            return
        state, part, name = case.split(" | ")
        job = Job(folder, large=name.endswith("_large"))
        STATES[state](job)
        if part == "plan":
            plan_case(job, name, expected)
        elif part == "input":
            input_case(job, name)
        elif part == "free":
            free_case(job, name, expected)
        else:
            harmless_case(job, name, expected)

    check.each([*names, *by_key], one)
    return (
        f"{len(PLAN_CHANGES)} plan settings and {len(INPUT_CHANGES)} changes of inputs refused, "
        f"{len(RUN_CHANGES)} run settings free: {check.cases - len(check.failures)} of "
        f"{check.cases} cases, on {len(STATES)} states of an output ({len(by_key)} of them of "
        "shuffled and mixed jobs)"
    )
