"""A job in parts, without processes: the bytes of one run, in whatever order its parts are done."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cases import quick
from support.parts import JOBS, job_of, write_inputs

import tokenmill
from reliability.corpus import dataset_bytes
from tokenmill import finishing, pipeline
from tokenmill.engines import unit as unit_module
from tokenmill.errors import RefusedError, UsageError
from tokenmill.inputs import segments
from tokenmill.inputs.segments import UnitId
from tokenmill.output.objects.records import compared, recorded_units
from tokenmill.output.objects.shared_folder import SharedFolder
from tokenmill.output.objects.workspace import ObjectWorkspace

PARTS = 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments, units, leases, ranges and runs that are merged."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 12)
    monkeypatch.setattr(segments, "UNIT_BYTES", 1 << 11)
    monkeypatch.setattr(unit_module, "UNIT_BYTES", 1 << 11)
    for name, value in {
        "LEASE_BYTES": "2500", "RANGE_BYTES": "2000", "MAX_RUNS": "4",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"TOKENMILL_{name}", value)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return write_inputs(tmp_path / "in")


def do_part(inputs: list[Path], output: Path, number: int, **options: Any) -> Any:
    return pipeline.prepare(inputs, output, workers=0, part=f"{number}/{PARTS}", **options)


def finish(output: Path) -> Any:
    return finishing.finish(output, workers=0)


@pytest.mark.parametrize("job", quick(JOBS, "llmc", "mds", "mixed"))
def test_parts_in_random_order_give_the_bytes_of_one_run(
    job: str, inputs: list[Path], tmp_path: Path
) -> None:
    given, options = job_of(job, inputs)
    tokenmill.prepare(given, tmp_path / "one", workers=0, quiet=True, **options)
    rng = random.Random(job)
    order = rng.sample(range(PARTS), PARTS)
    order += rng.sample(order, 2)  # some of them twice
    for number in order:
        do_part(given, tmp_path / "out", number, **options)
    assert not finish(tmp_path / "out").already_done
    assert dataset_bytes(tmp_path / "out") == dataset_bytes(tmp_path / "one")
    assert not list((tmp_path / "out").glob(".*"))
    assert finish(tmp_path / "out").already_done
    with pytest.raises(RefusedError, match="is finished already"):
        do_part(given, tmp_path / "out", 3, **options)


def test_finish_refuses_and_names_the_parts_that_are_missing(
    inputs: list[Path], tmp_path: Path
) -> None:
    given, options = job_of("llmc", inputs)
    for number in set(range(PARTS)) - {2, 4}:
        do_part(given, tmp_path / "out", number, **options)
    before = dataset_bytes(tmp_path / "out")
    with pytest.raises(RefusedError, match="leases are not complete") as error:
        finish(tmp_path / "out")
    assert "run these parts (again): 2, 4 of 5" in error.value.hint
    assert dataset_bytes(tmp_path / "out") == before
    for number in (4, 2):
        do_part(given, tmp_path / "out", number, **options)
    assert not finish(tmp_path / "out").already_done


def test_a_unit_that_is_not_recorded_is_missing(inputs: list[Path], tmp_path: Path) -> None:
    """Each part says that it is done; what counts is what is recorded."""
    given, options = job_of("llmc", inputs)
    for number in range(PARTS):
        do_part(given, tmp_path / "out", number, **options)
    records = sorted((tmp_path / "out/.tokenmill/records").iterdir())
    records[0].unlink()
    with pytest.raises(RefusedError, match=r"[1-9]\d* of .* leases are not complete"):
        finish(tmp_path / "out")


def test_the_plain_command_completes_what_parts_have_begun(
    inputs: list[Path], tmp_path: Path
) -> None:
    given, options = job_of("llmc", inputs)
    tokenmill.prepare(given, tmp_path / "one", workers=0, quiet=True, **options)
    for number in (1, 3):
        do_part(given, tmp_path / "out", number, **options)
    result = pipeline.prepare(given, tmp_path / "out", workers=0, **options)
    assert result.run["units_resumed"] > 0
    assert dataset_bytes(tmp_path / "out") == dataset_bytes(tmp_path / "one")


def test_a_part_that_is_done_does_nothing_again(inputs: list[Path], tmp_path: Path) -> None:
    given, options = job_of("llmc", inputs)
    first = do_part(given, tmp_path / "out", 4, **options)
    assert first.run["units_encoded"]
    second = do_part(given, tmp_path / "out", 4, **options)
    assert (second.run["units_encoded"], second.already_done) == (0, True)
    assert second.manifest.counts == first.manifest.counts


def test_a_damaged_unit_is_told_and_its_part_mends_it(inputs: list[Path], tmp_path: Path) -> None:
    given, options = job_of("llmc", inputs)
    tokenmill.prepare(given, tmp_path / "one", workers=0, quiet=True, **options)
    for number in range(PARTS):
        do_part(given, tmp_path / "out", number, **options)
    victim = sorted((tmp_path / "out/.tokenmill/units").iterdir())[3]
    victim.write_bytes(victim.read_bytes()[:-1] + b"X")
    with pytest.raises(tokenmill.TokenmillError, match="is not what it was"):
        finish(tmp_path / "out")
    for number in range(PARTS):
        do_part(given, tmp_path / "out", number, **options)
    finish(tmp_path / "out")
    assert dataset_bytes(tmp_path / "out") == dataset_bytes(tmp_path / "one")


def test_parts_of_another_plan_are_refused(inputs: list[Path], tmp_path: Path) -> None:
    given, options = job_of("llmc", inputs)
    do_part(given, tmp_path / "out", 1, **options)
    with pytest.raises(RefusedError, match="is bound to another plan"):
        do_part(given, tmp_path / "out", 2, **{**options, "seed": 9, "val": 0.3})


def test_an_input_that_differs_between_machines_is_found(
    inputs: list[Path], tmp_path: Path
) -> None:
    given, options = job_of("llmc", inputs)
    do_part(given, tmp_path / "out", 0, **options)
    workspace = ObjectWorkspace(SharedFolder(tmp_path / "out"))
    from tokenmill.output.objects.part_job import bound_to

    plan = bound_to(workspace)
    units = recorded_units(plan, workspace)
    record = units[min(units)]
    counts = msgspec.structs.replace(record.counts, tokens=1)
    other = msgspec.structs.replace(record, counts=counts)
    with pytest.raises(RefusedError, match="recorded twice, with different content"):
        compared(plan, [record, other])
    assert compared(plan, [record, record]) == {record.unit: record}


def test_an_order_of_records_does_not_decide_which_one_counts(
    inputs: list[Path], tmp_path: Path
) -> None:
    """A row killed its worker in one attempt and not in the other."""
    given, options = job_of("llmc", inputs)
    do_part(given, tmp_path / "out", 0, **options)
    workspace = ObjectWorkspace(SharedFolder(tmp_path / "out"))
    from tokenmill.output.journal import AsideRecord
    from tokenmill.output.objects.part_job import bound_to

    plan = bound_to(workspace)
    units = recorded_units(plan, workspace)
    record = units[min(units)]
    other = msgspec.structs.replace(record, set_aside=(AsideRecord(1, 1, "killed"),))
    assert compared(plan, [record, other]) == compared(plan, [other, record])
    assert isinstance(record.unit, UnitId)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit_docs": 5}, "read the inputs in order"),
        ({"overwrite": True}, "cannot be used with --overwrite"),
        ({"part": "16/16"}, "16 is not below 16"),
    ],
)
def test_what_cannot_be_done_in_parts_is_refused(
    options: dict[str, Any], told: str, inputs: list[Path], tmp_path: Path
) -> None:
    given, usual = job_of("nanogpt", inputs)
    with pytest.raises(UsageError, match=told):
        pipeline.prepare(given, tmp_path / "out", workers=0, **{"part": "0/16", **usual, **options})
    assert not (tmp_path / "out").exists()


def test_finish_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job in parts was begun here"):
        finish(tmp_path)
