"""Stopped at any moment, resumed to the same bytes; what would mix or destroy is refused.

Real processes killed at random moments are row R4 of the scorecard, several coordinators on one
output row R13.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import psutil
import pytest
from support.commands import OFTEN, command, dataset_bytes, durable_units, interrupted
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill.errors import RefusedError, TokenmillError
from tokenmill.inputs.opening.identify import FINGERPRINT_BLOCK, FINGERPRINT_BYTES
from tokenmill.system.store import Store


@pytest.fixture(scope="module")
def undisturbed(
    large_inputs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """The bytes of a run that nothing disturbed."""
    output = tmp_path_factory.mktemp("undisturbed") / "o"
    tokenmill.prepare(large_inputs, output, val=0.01, workers=2)
    return dataset_bytes(output)


def test_a_torn_journal_and_damaged_pieces_are_redone(
    large_inputs: list[Path],
    undisturbed: dict[str, bytes],
    tmp_path: Path,
) -> None:
    output = tmp_path / "o"
    interrupted(large_inputs, output, val=0.01)
    assert len(durable_units(output)) == 3
    journal = output / ".tokenmill" / "journal"
    journal.write_bytes(journal.read_bytes() + b"\x40\0\0\0half a record")
    tokens = output / ".tokenmill/files/tokens-train-000000"
    content = bytearray(tokens.read_bytes())
    content[1000] ^= 1  # in the first unit
    tokens.write_bytes(content)
    result = tokenmill.prepare(large_inputs, output, val=0.01, workers=2)
    assert result.run["units_resumed"] == 2
    assert dataset_bytes(output) == undisturbed


def test_run_settings_are_free_on_resume(
    large_inputs: list[Path],
    undisturbed: dict[str, bytes],
    tmp_path: Path,
) -> None:
    output = tmp_path / "o"
    interrupted(large_inputs, output, val=0.01)
    result = tokenmill.prepare(
        large_inputs, output, val=0.01, workers=3, start_method="spawn", memory="3GB",
        encoder_check=False, on_bad_row="quarantine",
    )  # fmt: skip
    assert result.run["units_resumed"] == 3
    assert dataset_bytes(output) == undisturbed


CHANGES = {
    "text_column": "id",
    "tokenizer": "cl100k_base",
    "eot": "prepend",
    "val": "docs:3",
    "seed": 1,
    "drop_empty": True,
    "format": "llmc",
}


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_another_plan_on_the_same_output_is_refused_with_the_difference(
    finished: bool, large_inputs: list[Path], tmp_path: Path
) -> None:
    output, inputs = tmp_path / "o", large_inputs[:1]
    if finished:
        tokenmill.prepare(inputs, output, workers=2)
    else:
        interrupted(inputs, output, units=1)
    for key, value in CHANGES.items():
        with pytest.raises(RefusedError) as refused:
            tokenmill.prepare(inputs, output, **{key: value})  # type: ignore[arg-type]
        assert key in refused.value.message
        assert str(value) in refused.value.message
        assert refused.value.exit_code == 2
    with pytest.raises(RefusedError, match=r"input added: b.jsonl"):
        tokenmill.prepare([*inputs, large_inputs[1]], output)


def test_llmc_plan_settings_are_bound_too(inputs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "o"
    tokenmill.prepare(inputs, output, format="llmc", workers=0)
    for change in ({"cut": "document"}, {"shard_tokens": "1M"}, {"name": "y"}, {"val": "none"}):
        with pytest.raises(RefusedError, match=next(iter(change))):
            tokenmill.prepare(inputs, output, format="llmc", **change)  # type: ignore[arg-type]


def test_changed_inputs_are_refused(tmp_path: Path, texts: list[str]) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", texts)
    tokenmill.prepare(path, tmp_path / "o", workers=0)
    path.write_bytes(path.read_bytes().replace(b"human", b"humen", 1))
    with pytest.raises(RefusedError, match=r"x.jsonl: content changed"):
        tokenmill.prepare(path, tmp_path / "o")
    write_jsonl(path, texts[:-1])
    with pytest.raises(RefusedError, match=r"bytes -> "):
        tokenmill.prepare(path, tmp_path / "o")


@pytest.fixture
def own_copy(large_inputs: list[Path], tmp_path: Path) -> Path:
    """A large input that a test may change."""
    path = tmp_path / "b.jsonl"
    path.write_bytes(large_inputs[1].read_bytes() * 2)
    return path


@pytest.mark.long
def test_a_change_that_sampling_misses_is_found_on_resume(own_copy: Path, tmp_path: Path) -> None:
    """A touched file's units are done again and must come out the same."""
    path, content = own_copy, own_copy.read_bytes()
    interrupted([path], tmp_path / "o", units=2)
    os.utime(path, (5, 5))
    result = tokenmill.prepare(path, tmp_path / "o", workers=2)
    assert result.run["units_resumed"] == 0, "a touched file is not trusted"

    interrupted([path], tmp_path / "p", units=2)
    changed = bytearray(content)
    stride = (len(content) - FINGERPRINT_BLOCK) // (FINGERPRINT_BYTES // FINGERPRINT_BLOCK - 1)
    places = (found.start() for found in re.finditer(b"human", content))
    at = next(p for p in places if p % stride > FINGERPRINT_BLOCK + 300)  # not in a sampled block
    changed[at] = ord("H")
    path.write_bytes(changed)
    with pytest.raises(TokenmillError, match="is not what it was when it was first written"):
        tokenmill.prepare(path, tmp_path / "p", workers=2)


def test_a_large_input_written_to_since_is_not_taken_for_unchanged(
    own_copy: Path, tmp_path: Path
) -> None:
    """Only samples of it are hashed: a change between them shows in its time alone."""
    tokenmill.prepare(own_copy, tmp_path / "o", workers=2)
    os.utime(own_copy, (5, 5))
    with pytest.raises(RefusedError, match=r"b.jsonl: was modified after"):
        tokenmill.prepare(own_copy, tmp_path / "o", workers=2)


def test_an_input_changed_in_mid_run_is_never_committed(own_copy: Path, tmp_path: Path) -> None:
    from tokenmill.engines.observer import Observer, Snapshot
    from tokenmill.errors import SourceError

    class Meddler(Observer):
        def update(self, snapshot: Snapshot) -> None:
            own_copy.write_bytes(own_copy.read_bytes().replace(b"human", b"humEn"))

    with pytest.raises(SourceError, match="changed while it was being read"):
        tokenmill.prepare(own_copy, tmp_path / "o", workers=0, observer=Meddler())
    assert not (tmp_path / "o" / "manifest.json").exists()


def test_a_finished_dataset_says_so_and_exits_0(inputs: list[Path], tmp_path: Path) -> None:
    first = command("prepare", *inputs, "-o", tmp_path / "o")
    assert first.returncode == 0, first.stderr
    before = dataset_bytes(tmp_path / "o")
    again = command("prepare", *inputs, "-o", tmp_path / "o")
    assert again.returncode == 0
    assert "already complete" in again.stdout
    assert dataset_bytes(tmp_path / "o") == before


def test_foreign_files_are_refused_and_never_removed(inputs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "o"
    output.mkdir()
    (output / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(RefusedError, match=r"did not make \(thesis.tex\)"):
            tokenmill.prepare(inputs, output, overwrite=overwrite)
    (output / "thesis.tex").unlink()
    tokenmill.prepare(inputs, output, workers=0)
    (output / "thesis.tex").write_text("years of work")
    tokenmill.prepare(inputs, output, workers=0, overwrite=True, format="llmc", name="z")
    assert sorted(p.name for p in output.iterdir()) == [
        "index", "manifest.json", "run.json", "thesis.tex", "z_val_000000.bin",
    ]  # fmt: skip


def test_overwrite_removes_nothing_that_is_not_ours(inputs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "o"
    output.mkdir()
    for name in ("manifest.json", "run.json", "train.bin"):
        (output / name).write_text("somebody else's")
    with pytest.raises(RefusedError, match="not a manifest of tokenmill"):
        tokenmill.prepare(inputs, output, overwrite=True)
    assert (output / "train.bin").read_text() == "somebody else's"
    for name in ("manifest.json", "run.json"):
        (output / name).unlink()
    (output / ".tokenmill").mkdir()  # as if a job had begun, and then a file came
    for overwrite in (False, True):  # the commit names train.bin, but has not published it
        with pytest.raises(RefusedError, match="tokenmill did not make it"):
            tokenmill.prepare(inputs, output, workers=0, overwrite=overwrite)
        assert (output / "train.bin").read_text() == "somebody else's"


def test_a_crash_while_overwriting_is_completed(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmill.output.workspace import Workspace

    output = tmp_path / "o"
    tokenmill.prepare(inputs, output, format="llmc", shard_tokens="50k", name="old", workers=0)
    with monkeypatch.context() as patch:
        patch.setattr(
            Workspace, "finish_removal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            tokenmill.prepare(inputs, output, overwrite=True, workers=0)
    assert not (output / "manifest.json").exists(), "no reader takes the old one for a dataset"
    tokenmill.prepare(inputs, output, workers=0)
    left = sorted(path.name for path in output.iterdir())
    assert left == ["index", "manifest.json", "run.json", "train.bin"], "of the old one nothing"


def test_no_file_stays_open(inputs: list[Path], tmp_path: Path) -> None:
    """Or a program that prepares many datasets runs out of descriptors."""
    tokenmill.prepare(inputs, tmp_path / "first", workers=0)
    before = psutil.Process().num_fds()
    tokenmill.prepare(inputs, tmp_path / "second", workers=0, format="llmc")
    assert psutil.Process().num_fds() <= before


def test_a_run_stopped_by_a_bad_row_goes_on_with_quarantine(tmp_path: Path) -> None:
    texts: list[str | None] = ["word " * 3000] * 4000
    texts[3500] = None
    path = write_parquet(tmp_path / "x.parquet", texts, rows=500)
    output = tmp_path / "o"
    stopped = command("prepare", path, "-o", output, env=OFTEN)
    assert stopped.returncode == 1
    assert "x.parquet: row 3500 (row group 7): null" in stopped.stderr
    assert "--on-bad-row quarantine" in stopped.stderr
    durable = len(durable_units(output))
    done = command("prepare", path, "-o", output, "--on-bad-row", "quarantine", "--json")
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout)
    assert result["run"]["units_resumed"] == durable > 0
    assert result["counts"]["quarantined"] == 1
    assert result["counts"]["rows"] == 4000


def test_a_manifest_that_another_coordinator_removes_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at it; then the lock decides, and says who is at work."""
    from tokenmill.output import recovery as job
    from tokenmill.output.workspace import Workspace

    source = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    tokenmill.prepare(source, tmp_path / "o", val="none", workers=0)
    workspace = Workspace(tmp_path / "o")
    load = job.Manifest.load

    def removed_meanwhile(store: Store) -> job.Manifest:
        (tmp_path / "o/manifest.json").rename(tmp_path / "gone")
        (tmp_path / "o" / ".tokenmill").mkdir()
        return load(store)

    monkeypatch.setattr(job.Manifest, "load", removed_meanwhile)
    job.refuse_foreign(workspace)


def test_what_an_earlier_run_did_is_no_part_of_the_speed(tmp_path: Path) -> None:
    from tokenmill.engines.observer import Observer, Snapshot

    class Stop(Observer):
        """Ends the first run when three of its five sources are done."""

        def update(self, snapshot: Snapshot) -> None:
            if snapshot.units >= 3:
                raise TokenmillError("enough")

    class Look(Observer):
        first: int | None = None
        last = 0

        def update(self, snapshot: Snapshot) -> None:
            if self.first is None and snapshot.bytes_done:
                self.first = snapshot.resumed_bytes
            self.last = snapshot.resumed_bytes

    sources = [write_jsonl(tmp_path / f"{i}.jsonl", ["some text"] * 2000) for i in range(5)]
    with pytest.raises(TokenmillError, match="enough"):
        tokenmill.prepare(sources, tmp_path / "o", val="none", workers=0, observer=Stop())
    look = Look()
    result = tokenmill.prepare(sources, tmp_path / "o", val="none", workers=0, observer=look)
    resumed = result.run["units_resumed"]
    assert resumed > 0
    assert look.last == resumed * sources[0].stat().st_size
