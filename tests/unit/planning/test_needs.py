"""Disk space and downloads of a job, as arithmetic: no network, no disk is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import OfflineError, RefusedError
from tokenmill.inputs.remote.address import HubAddress, RemoteFile
from tokenmill.inputs.source import Source
from tokenmill.planning import needs as planning_needs
from tokenmill.planning.needs import SURE, Needs, needs_of, refuse_if_offline, typical_of
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.planning.plan import Plan

GB = 10**9
sizes_of_files = st.lists(st.integers(0, 50 * GB), min_size=1, max_size=12)


def source(number: int, size: int, *, remote: bool = True, repo: str = "") -> Source:
    name = f"{number}.parquet"
    hub = HubAddress(kind="dataset", repo=repo, revision="0" * 40, path=name) if repo else None
    file = RemoteFile(name=name, size=size, fingerprint="etag:x", url=f"x://{name}", hub=hub)
    return Source(
        number=number, name=name, path="", kind="parquet", size=size, fingerprint="etag:x",
        mtime_ns=0, remote=file if remote else None,
    )  # fmt: skip


def plan_of(sources: list[Source], format: str = "nanogpt", limit: int = 0) -> Plan:
    settings = plan_settings(make_options({"format": format, "name": "x"}), "out")
    settings = msgspec.structs.replace(settings, limit_docs=limit)
    return Plan(settings=settings, sources=tuple(sources))


def needs(plan: Plan, missing: list[Source] | None = None, **more: Any) -> Needs:
    here = Path(__file__).parent
    found = needs_of(plan, here, list(plan.sources) if missing is None else missing, **more)
    assert found is not None
    return found


def test_local_files_need_no_download_and_no_space_is_reckoned() -> None:
    assert needs_of(plan_of([source(0, GB, remote=False)]), Path("out"), []) is None


@given(sizes_of_files, st.data())
def test_files_that_are_here_already_are_counted_and_not_downloaded(
    sizes: list[int], data: st.DataObject
) -> None:
    sources = [source(i, size) for i, size in enumerate(sizes)]
    missing = data.draw(st.lists(st.sampled_from(sources), unique=True))
    found = needs(plan_of(sources), missing)
    assert found.fetch_files == len(missing)
    assert found.fetch_bytes == found.held_bytes == sum(one.size for one in missing)
    assert found.fetch_files + found.here_files == len(sources)


@given(sizes_of_files, st.integers(1, 12))
def test_downloads_that_are_not_kept_take_as_much_as_the_largest_that_are_there_at_once(
    sizes: list[int], at_once: int
) -> None:
    plan = plan_of([source(i, size) for i, size in enumerate(sizes)])
    held = needs(plan, work=Path(__file__).parent, at_once=at_once).held_bytes
    assert held == sum(sorted(sizes)[-at_once:])
    assert held <= needs(plan).held_bytes


@given(sizes_of_files)
def test_a_trial_run_takes_one_file_at_a_time_and_hardly_any_tokens(sizes: list[int]) -> None:
    found = needs(plan_of([source(i, size) for i, size in enumerate(sizes)], limit=10))
    assert (found.held_bytes, found.output_bytes) == (max(sizes), 0)
    assert found.fetch_bytes == sum(sizes)


@given(sizes_of_files, st.integers(0, 200 * GB))
def test_tokens_take_two_bytes_each_for_every_copy_without_those_already_written(
    sizes: list[int], written: int
) -> None:
    sources = [source(i, size) for i, size in enumerate(sizes)]
    typical = sum(typical_of(one)[1] for one in sources)
    one, two = plan_of(sources), plan_of(sources, "nanogpt,llmc")
    assert needs(one).output_bytes == int(typical * 2)
    assert needs(two).output_bytes == int(typical * 4)
    assert needs(one, written=written).output_bytes == max(0, int(typical * 2) - written)


def have(held: int, output: int, downloads_free: int, output_free: int, *, one: bool) -> Needs:
    return Needs(
        fetch_files=3, fetch_bytes=held, here_files=0, held_bytes=held, output_bytes=output,
        downloads="/cache", downloads_free=downloads_free, output_free=output_free, one_disk=one,
    )  # fmt: skip


def is_refused(needed: Needs) -> bool:
    try:
        needed.refuse_if_short()
    except RefusedError:
        return True
    return False


amounts = st.integers(0, 100 * GB)


@given(amounts, amounts, amounts)
def test_on_one_disk_the_downloads_and_the_sure_part_of_the_tokens_must_fit(
    held: int, output: int, free: int
) -> None:
    least = held + int(output * SURE)
    assert is_refused(have(held, output, free, free, one=True)) == (free < least)
    assert not is_refused(have(held, output, least, least, one=True))
    assert is_refused(have(held, output, least, least - 1, one=True)) == (least > 0)


@given(amounts, amounts, amounts, amounts)
def test_on_two_disks_each_must_hold_what_goes_there(
    held: int, output: int, downloads_free: int, output_free: int
) -> None:
    short = downloads_free < held or output_free < int(output * SURE)
    assert is_refused(have(held, output, downloads_free, output_free, one=False)) == short


@given(amounts, amounts, st.booleans())
def test_a_disk_that_does_not_say_what_is_free_is_not_refused(
    held: int, output: int, one: bool
) -> None:
    assert not is_refused(have(held, output, -1, -1, one=one))


def test_the_refusal_names_what_is_free_and_what_is_needed() -> None:
    with pytest.raises(RefusedError) as refused:
        have(30 * GB, 10 * GB, 20 * GB, 20 * GB, one=True).refuse_if_short()
    for fact in ("20.0 GB", "40.0 GB", "30.0 GB", "10.0 GB", "3 files"):
        assert fact in refused.value.message
    with pytest.raises(RefusedError, match=r"/cache: 20\.0 GB .* 30\.0 GB"):
        have(30 * GB, 10 * GB, 20 * GB, 20 * GB, one=False).refuse_if_short()


def test_offline_all_missing_files_of_the_hub_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = [source(i, GB, repo="o/n") for i in range(7)]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    refuse_if_offline(missing)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refuse_if_offline([source(0, GB)])  # not of the Hub
    with pytest.raises(OfflineError) as refused:
        refuse_if_offline(missing)
    assert "7 files" in refused.value.message
    assert "7.0 GB" in refused.value.message
    assert refused.value.message.count(".parquet") == 5
    assert "2 more" in refused.value.message


def test_the_free_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    free = planning_needs.free_bytes(tmp_path / "not" / "yet")
    assert free == pytest.approx(planning_needs.free_bytes(tmp_path), rel=0.05)
    assert free > 0
