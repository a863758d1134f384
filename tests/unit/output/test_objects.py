"""A job in a store of whole files: the dataset of a folder, without rename, lock or append."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.inputs import write_jsonl

import tokenmill
from reliability.corpus import dataset_bytes
from reliability.memory_store import MemoryStore
from tokenmill import pipeline
from tokenmill.errors import RefusedError, StorageError
from tokenmill.formats import FORMATS
from tokenmill.inputs import segments
from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import PieceRecord, UnitRecord, framed, journal_header
from tokenmill.output.objects.creating import TRIES, create_once
from tokenmill.output.objects.lease import DriverLease, highest
from tokenmill.output.objects.log import ObjectLog, read_objects
from tokenmill.output.objects.units import JoinedFiles, ObjectFiles, is_unit_whole
from tokenmill.output.objects.units import unit_name as name_of_unit
from tokenmill.output.objects.workspace import DRIVER, ObjectWorkspace
from tokenmill.output.workspace import WORK
from tokenmill.tokens.counts import Counts, State

# --- whole jobs ----------------------------------------------------------------------------------

MIX = """
tokens = 3000
[source.some]
inputs = ["a.jsonl"]
weight = 0.5
[source.other]
inputs = ["b.jsonl"]
weight = 0.5
max_epochs = 5
"""
JOBS: dict[str, dict[str, Any]] = {
    **{name: {"format": name} for name in FORMATS},
    "modded": {"format": "modded", "shard_tokens": 700},
    "several": {"format": "llmc,hf,parquet", "shard_tokens": 900},
    "tail": {"format": "nanogpt", "val": "tail:0.2"},
    "merged": {
        "format": "llmc", "shard_tokens": 900, "min_shard_tokens": 800, "last_shard": "merge",
        "val": "none",
    },
}  # fmt: skip
SHUFFLED: dict[str, dict[str, Any]] = {
    "shuffled": {"format": "llmc", "shard_tokens": 900},
    "in mds": {"format": "mds", "val": 0.2},
    "limited": {"format": "nanogpt", "val": "none", "limit_docs": 20},
}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = write_jsonl(tmp_path / "a.jsonl", [f"some text {n} " * (n % 40) for n in range(60)])
    path.write_bytes(path.read_bytes() + b'{"text": 17}\n')
    return path


def in_memory(texts: Path, store: MemoryStore, **options: Any) -> Any:
    given = {"val": "docs:9", "name": "x", "on_bad_row": "quarantine", **options}
    return pipeline.prepare(texts, store, scratch=str(texts.parent / "scratch"), **given)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_without_a_folder_gives_the_files_of_one_in_a_folder(
    job: str, texts: Path, tmp_path: Path
) -> None:
    options = {"val": "docs:9", "name": "x", "on_bad_row": "quarantine", **JOBS[job]}
    tokenmill.prepare(texts, tmp_path / "out", workers=0, quiet=True, **options)
    store = MemoryStore()
    result = in_memory(texts, store, **JOBS[job])
    assert not result.already_done
    assert store.files.pop("run.json")
    assert store.files == dataset_bytes(tmp_path / "out")
    assert in_memory(texts, store, **JOBS[job]).already_done


@pytest.mark.parametrize("job", ["llmc", "several", "mds"])
def test_a_folder_that_several_machines_share_holds_the_same_files(
    job: str, texts: Path, tmp_path: Path
) -> None:
    options = {"val": "docs:9", "name": "x", "on_bad_row": "quarantine", **JOBS[job]}
    tokenmill.prepare(texts, tmp_path / "out", workers=0, quiet=True, **options)
    address = f"shared:{tmp_path / 'shared'}"
    tokenmill.prepare(texts, address, workers=0, quiet=True, **options)
    assert dataset_bytes(tmp_path / "shared") == dataset_bytes(tmp_path / "out")
    assert not list((tmp_path / "shared").glob(".*"))


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several units, runs that are merged, and several ranges."""
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "2000")
    monkeypatch.setenv("TOKENMILL_MAX_RUNS", "2")
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 11)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("job", SHUFFLED)
def test_a_shuffled_job_without_a_folder_gives_the_files_of_one_in_a_folder(
    job: str, texts: Path, tmp_path: Path
) -> None:
    options = {"val": "docs:9", "name": "x", "shuffle": True, "seed": 3, **SHUFFLED[job]}
    tokenmill.prepare(
        texts, tmp_path / "out", workers=0, quiet=True, on_bad_row="quarantine", **options
    )
    store = MemoryStore()
    assert not in_memory(texts, store, **options).already_done
    assert store.files.pop("run.json")
    assert store.files == dataset_bytes(tmp_path / "out")
    assert in_memory(texts, store, **options).already_done


@pytest.mark.usefixtures("small_ranges")
def test_a_mixture_without_a_folder_gives_the_files_of_one_in_a_folder(
    texts: Path, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "b.jsonl", [f"another text {n} " * (n % 9) for n in range(40)])
    (tmp_path / "mix.toml").write_text(MIX)
    options = {
        "mix": tmp_path / "mix.toml", "val": 0.1, "name": "x", "shuffle": True, "seed": 3,
        "format": "llmc", "shard_tokens": 900, "on_bad_row": "quarantine",
    }  # fmt: skip
    tokenmill.prepare((), tmp_path / "out", workers=0, quiet=True, **options)
    store = MemoryStore()
    pipeline.prepare((), store, scratch=str(tmp_path / "scratch"), **options)
    assert store.files.pop("run.json")
    assert store.files == dataset_bytes(tmp_path / "out")


def test_another_plan_is_refused_and_does_not_stop_a_job_at_work(texts: Path) -> None:
    store = MemoryStore()
    workspace = ObjectWorkspace(store)
    lease = workspace.lock()
    store.files[workspace.plan] = b'{"plan": {}}'
    with pytest.raises(RefusedError, match="is bound to another plan"):
        in_memory(texts, store)
    lease.check()


def test_files_of_others_are_refused_and_stay(texts: Path) -> None:
    store = MemoryStore({"theirs.bin": b"1"})
    for overwrite in (False, True):
        with pytest.raises(RefusedError, match="holds files that tokenmill did not make"):
            in_memory(texts, store, overwrite=overwrite)
    assert store.files == {"theirs.bin": b"1"}


# --- create, and look what is there --------------------------------------------------------------


class Answers(MemoryStore):
    """Says that a file exists already, so many times, whether it carries the request out or not."""

    def __init__(self, *, carried_out: bool, times: int) -> None:
        super().__init__()
        self.carried_out, self.times = carried_out, times

    def create(self, name: str, content: bytes) -> None:
        if not self.times:
            super().create(name, content)
            return
        self.times -= 1
        if self.carried_out:
            super().create(name, content)
        raise RefusedError("exists already")


def test_a_create_whose_answer_was_lost_is_ours() -> None:
    store = Answers(carried_out=True, times=1)
    create_once(store, "plan", b"mine")
    assert store.files == {"plan": b"mine"}


def test_a_conflict_is_tried_again_and_not_for_ever() -> None:
    store = Answers(carried_out=False, times=2)
    create_once(store, "plan", b"mine")
    assert store.files == {"plan": b"mine"}
    with pytest.raises(StorageError, match="met with another request"):
        create_once(Answers(carried_out=False, times=TRIES), "plan", b"mine")


def test_what_a_twin_has_created_is_ours_and_other_content_is_refused() -> None:
    store = MemoryStore({"plan": b"mine"})
    create_once(store, "plan", b"mine")
    with pytest.raises(RefusedError, match="with another content"):
        create_once(store, "plan", b"other")
    assert store.files == {"plan": b"mine"}


# --- leases --------------------------------------------------------------------------------------


def test_the_next_coordinator_takes_over_and_the_one_before_notices() -> None:
    store = MemoryStore()
    first = DriverLease.take(store, DRIVER)
    first.check()
    second = DriverLease.take(store, DRIVER)
    second.check()
    with pytest.raises(RefusedError, match="has taken over"):
        first.check()
    assert (first.number, second.number) == (1, 2)


def test_of_two_that_begin_at_the_same_moment_one_is_refused() -> None:
    class Slow(MemoryStore):
        def create(self, name: str, content: bytes) -> None:
            if not self.files:
                DriverLease.take(MemoryStore(self.files), DRIVER)
            super().create(name, content)

    store = Slow()
    with pytest.raises(RefusedError, match="with another content"):
        DriverLease.take(store, DRIVER)
    assert highest(store, DRIVER) == 1


def test_a_lease_of_the_same_number_of_a_later_job_is_another_one() -> None:
    store = MemoryStore()
    lease = DriverLease.take(store, DRIVER)
    store.files.clear()
    with pytest.raises(RefusedError):
        lease.check()
    DriverLease.take(store, DRIVER)
    with pytest.raises(RefusedError):
        lease.check()


def test_leases_go_last_and_the_oldest_first() -> None:
    removed: list[str] = []

    class Noted(MemoryStore):
        def remove(self, name: str) -> bool:
            removed.append(name)
            return super().remove(name)

    store = Noted()
    workspace = ObjectWorkspace(store)
    first, _ = DriverLease.take(store, DRIVER), workspace.lock()
    store.files |= {f"{WORK}/units/1": b"", f"{WORK}/names/00000000": b"", "train.bin": b""}
    workspace.remove_work()
    assert removed[-2:] == [f"{DRIVER}/{first.number:08d}", f"{DRIVER}/{first.number + 1:08d}"]
    assert list(store.files) == ["train.bin"]


def step(workspace: ObjectWorkspace, name: str) -> None:
    match name:
        case "journal":
            workspace.open_log("journal", 0, b"").append(b"1")
        case "names":
            workspace.announce(["train.bin"])
        case "publish":
            workspace.publish({}, b"", b"{}")
        case "clear":
            workspace.clear_work()
        case "remove":
            workspace.remove_work()
        case "begin":
            workspace.begin_removal()
        case "finish":
            workspace.finish_removal(["manifest.json"])
        case "record":
            workspace.put_run_record({})


@pytest.mark.parametrize(
    "name", ["journal", "names", "publish", "clear", "remove", "begin", "finish", "record"]
)
def test_who_was_taken_over_changes_nothing_any_more(name: str) -> None:
    store = MemoryStore({"manifest.json": b"other"})
    workspace = ObjectWorkspace(store)
    workspace.lock()
    DriverLease.take(store, DRIVER)
    before = dict(store.files)
    with pytest.raises(RefusedError, match="has taken over"):
        step(workspace, name)
    assert store.files == before


def test_a_manifest_names_no_file_that_is_gone_and_replaces_no_other() -> None:
    store = MemoryStore()
    workspace = ObjectWorkspace(store)
    workspace.lock()
    with pytest.raises(StorageError, match="is not there any more"):
        workspace.publish({"train.bin": "train.bin"}, b"", b"{}")
    assert "manifest.json" not in store.files
    store.files["manifest.json"] = b"other"
    with pytest.raises(RefusedError, match="with another content"):
        workspace.publish({}, b"", b"{}")


# --- logs ----------------------------------------------------------------------------------------


def test_a_log_is_numbered_objects_and_what_is_damaged_is_left_out() -> None:
    store, header = MemoryStore(), journal_header("plan")
    log = ObjectLog(store, "log", 0, header, lambda: None)
    for body in (b"a", b"b", b"c"):
        log.append(framed(body) + framed(body * 2))
    assert read_objects(store, "log", header, bytes) == ([b"a", b"aa", b"b", b"bb", b"c", b"cc"], 3)
    content = store.files["log/00000001"]
    store.files["log/00000001"] = content[:-1] + b"X"
    store.files["log/00000002"] = journal_header("other") + framed(b"c")
    assert read_objects(store, "log", header, bytes) == ([b"a", b"aa", b"b"], 3)
    with pytest.raises(RefusedError):  # another coordinator wrote it: what we know is old
        ObjectLog(store, "log", 2, header, lambda: None).append(framed(b"d"))


def test_names_that_lead_out_of_the_output_are_never_removed() -> None:
    store = MemoryStore()
    workspace = ObjectWorkspace(store)
    workspace.announce(["train.bin", "../other/train.bin", ".tokenmill/plan.json"])
    assert ObjectWorkspace(store).announced() == ["train.bin"]


# --- units ---------------------------------------------------------------------------------------


def unit(number: int, pieces: Iterable[PieceRecord]) -> UnitRecord:
    state = State(streams=())
    return UnitRecord(UnitId(0, 0, number), False, 0, Counts(), state, state, tuple(pieces))


def put(store: MemoryStore, number: int, *given: tuple[str, int, bytes]) -> UnitRecord:
    import xxhash

    files = ObjectFiles(store, "units")
    files.write_at("of a unit that failed", 0, b"junk")
    for name, offset, content in given:
        files.write_at(name, offset, content)
    record = unit(
        number, (PieceRecord(n, at, len(c), xxhash.xxh3_64_intdigest(c)) for n, at, c in given)
    )
    files.unit_written(record.unit, record.pieces)
    return record


def unit_name(record: UnitRecord) -> str:
    return name_of_unit("units", record.unit, record.pieces)


def test_units_are_objects_named_by_their_hash_and_read_as_files() -> None:
    store = MemoryStore()
    first = put(store, 1, ("tokens", 4, b"abc"), ("ends", 0, b"12"))
    second = put(store, 2, ("tokens", 7, b"defg"), ("ends", 2, b"3"))
    assert store.files == {
        unit_name(first): b"abc12",
        unit_name(second): b"defg3",
    }
    joined = JoinedFiles(store, "units", [second, first])
    assert (joined.size("tokens"), joined.size("ends"), joined.size("no")) == (11, 3, None)
    assert joined.read("tokens", 5, 4) == b"bcde"
    assert joined.read("tokens", 4, 99) == b"abcdefg"
    assert bytes(joined.view("ends")) == b"123"
    with pytest.raises(StorageError, match="no unit holds its byte 0"):
        joined.read("tokens", 0, 5)
    other = put(store, 1, ("tokens", 4, b"abX"), ("ends", 0, b"12"))
    assert unit_name(other) != unit_name(first)


def test_a_unit_that_is_not_what_it_was_goes_into_no_file() -> None:
    store = MemoryStore()
    record = put(store, 1, ("tokens", 0, b"abc"), ("ends", 0, b"12"))
    name = unit_name(record)
    for damaged in (b"abX12", b"abc1", b""):
        assert is_unit_whole(store, "units", record)
        store.files[name] = damaged
        assert not is_unit_whole(store, "units", record)
        joined = JoinedFiles(store, "units", [record])
        with pytest.raises(StorageError, match="is not what it was"):
            joined.read("tokens", 0, 3), joined.read("ends", 0, 2)
        store.files[name] = b"abc12"
