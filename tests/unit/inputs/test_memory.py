"""What must be held whole: measured before it is touched, refused with the memory it needs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory import SMALL, passes, refusal

from tokenmill.errors import TooLargeError, from_wire
from tokenmill.inputs.readers.arrow_ipc import decompressed_bytes, layout_of
from tokenmill.inputs.readers.parquet_metadata import pages
from tokenmill.inputs.readers.separators import Separator
from tokenmill.system.memory import MemoryShare, fit_budget, memory_for
from tokenmill.texts import longest_word


@given(st.integers(1, 10**12), st.integers(1, 64))
def test_the_memory_asked_for_is_enough_and_hardly_more(need: int, workers: int) -> None:
    memory = memory_for(need, workers)
    budget = fit_budget(workers, memory)
    assert budget.workers == workers
    MemoryShare(budget.worker_bytes, workers).take(need, "a", "b")
    if need > 150_000_000:  # less has every worker
        with pytest.raises(TooLargeError):
            MemoryShare(budget.worker_bytes, workers).take(need + 20_000_000, "a", "b")


def test_a_refusal_keeps_its_kind_on_the_way_to_the_coordinator() -> None:
    with pytest.raises(TooLargeError) as caught:
        SMALL.take(10**9, "x.parquet: row group 3", "row 7 is 500,000,000 bytes")
    again = from_wire(caught.value.to_wire())
    assert (type(again), again.exit_code) == (TooLargeError, 2)
    assert "x.parquet: row group 3: row 7 is 500,000,000 bytes" in again.message
    assert "--memory 2700MB, or with --workers 1 --memory 1500MB" in again.hint


def test_before_something_large_is_held_the_rest_makes_room() -> None:
    asked: list[int] = []
    room = MemoryShare(10**9, 2, relieve=asked.append)
    room.take(5, "a", "b")
    assert (asked, room.held) == ([5], 5)
    room.leave()
    assert room.held == 0


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_page_headers_add_up_to_what_the_footer_says(
    tmp_path: Path, version: str, dictionary: bool, compression: str
) -> None:
    texts = [f"row {i} " * (i % 300) for i in range(20_000)]
    pyarrow.parquet.write_table(
        pyarrow.table({"n": range(20_000), "text": texts}),
        tmp_path / "a.parquet",
        row_group_size=9_000,
        data_page_version=version,
        use_dictionary=dictionary,
        compression=compression,
        data_page_size=100_000,
        write_page_checksum=True,
    )
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").metadata
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(1)
        found = pages(str(tmp_path / "a.parquet"), chunk)
        assert found is not None
        assert sum(page.values for page in found if not page.dictionary) == chunk.num_values
        assert any(page.dictionary for page in found) == chunk.has_dictionary_page
        total = sum(page.size for page in found)
        assert 0.9 * chunk.total_uncompressed_size < total < chunk.total_uncompressed_size
        assert len(found) > 1


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=30))
def test_damaged_page_headers_never_raise(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["words " * 50] * 40}), sink)
    metadata = pyarrow.parquet.ParquetFile(sink).metadata
    content = bytearray(sink.getvalue())
    for place, value in flips:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "flipped.parquet"
    path.write_bytes(content)
    pages(str(path), metadata.row_group(0).column(0))


@pytest.mark.long
def test_a_large_value_in_parquet(tmp_path: Path) -> None:
    text = "some words here " * 6_000_000  # 96 MB
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "compression": "zstd"}
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a", text, "b"]}), path, row_group_size=1, **options
    )
    said = refusal(path)
    assert "a.parquet: row group 1: row 1 is 96,000,010 bytes" in said
    assert "takes 192.0 MB" in said
    assert passes(path, MemoryShare(200_000_000 + 193_000_000, 2)) == 3
    assert "takes 1.5 GB" in refusal(path, may_cut=False)


def test_a_large_row_group_of_small_pages_needs_no_room(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["some words here " * 100] * 100_000})
    pyarrow.parquet.write_table(table, path, use_dictionary=False, row_group_size=100_000)
    assert passes(path, SMALL) == 100_000


def test_a_compressed_record_batch(tmp_path: Path) -> None:
    records = pyarrow.record_batch({"text": ["some words here " * 100] * 100_000})
    for codec, size in (("zstd", 160_000_000), ("lz4", 160_000_000)):
        path = tmp_path / f"{codec}.arrow"
        options = pyarrow.ipc.IpcWriteOptions(compression=codec)
        with pyarrow.ipc.new_stream(path, records.schema, options=options) as writer:
            writer.write_batch(records)
        block = layout_of(str(path), 0).blocks[0]
        with open(path, "rb") as file:
            assert size < decompressed_bytes(file.fileno(), block) < size * 1.1
        assert "record batch 0: it is 16" in refusal(path)
        assert passes(path, MemoryShare(400_000_000, 2)) == 100_000


def test_a_large_value_in_a_plain_record_batch(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    records = pyarrow.record_batch({"text": ["a", "some words here " * 6_000_000, "b"]})
    with pyarrow.ipc.new_stream(path, records.schema) as writer:
        writer.write_batch(records)
    assert "a.arrow: record batch 0: row 1 is 96,000,000 bytes" in refusal(path)
    assert passes(path, MemoryShare(400_000_000, 2)) == 3


@given(st.lists(st.text("ab \n", max_size=20), max_size=6))
def test_the_longest_word_is_found_across_blocks(blocks: list[str]) -> None:
    text = "".join(blocks)
    runs, longest = 0, 0
    for i, letter in enumerate(text):
        runs = runs + 1 if i and (letter in " \n") == (text[i - 1] in " \n") else 1
        longest = max(longest, runs)
    assert longest_word([block.encode() for block in blocks]) == longest


@given(
    st.sampled_from([b"\n\n", b"aba", b"a", b"abab", b"---", b"ab"]),
    st.text("ab-\n", max_size=120),
    st.integers(1, 30),
)
def test_separators_in_blocks_are_where_split_finds_them(
    value: bytes, text: str, block: int
) -> None:
    separator, data = Separator(value), text.encode()
    separator.block_bytes = block
    found = np.concatenate([np.zeros(0, np.int64), *separator.blocks(data)])
    assert [data[i : i + len(value)] for i in found.tolist()] == [value] * len(found)
    expected, at = [], data.find(value)
    while at >= 0:
        expected.append(at)
        at = data.find(value, at + len(value))
    assert found.tolist() == expected
    assert separator.find_all(data).tolist() == expected


@given(
    st.sampled_from([b"\n\n", b"aba", b"abab", b"---"]),
    st.text("ab-\n", max_size=60),
    st.integers(0, 60),
)
def test_a_search_from_where_sync_says_finds_what_one_from_the_start_does(
    value: bytes, text: str, position: int
) -> None:
    separator, data = Separator(value), text.encode()
    position = min(position, len(data))
    place = separator.sync(lambda start, stop: data[start:stop], position)
    assert 0 <= place <= position
    ends = [hit + len(value) for hit in separator.find_all(data).tolist()]
    assert not any(end - len(value) < place < end for end in ends)
    assert [end for end in ends if end >= position] == [
        hit + len(value)
        for hit in separator.find_all(data, place).tolist()
        if hit + len(value) >= position
    ]


def test_a_place_in_a_long_run_of_separators_is_found_near_by() -> None:
    data = b"\n" * 1_000_001
    place = Separator(b"\n\n").sync(lambda start, stop: data[start:stop], 900_001)
    assert place == 899_998
