"""Arrow IPC, streams and files: the same documents as parquet, and no damage that kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pytest
import reference
from conftest import token_bytes, write_arrow, write_jsonl, write_parquet
from test_documents import read

import tokenmill
from tokenmill.config import Reading
from tokenmill.documents import read_segment
from tokenmill.errors import BadRowError, InputError
from tokenmill.plan import cut_record_batches, segments_of
from tokenmill.sources import find_sources

FORMS = ("stream", "file")
KINDS = (
    pyarrow.string(),
    pyarrow.binary(),
    pyarrow.large_string(),
    pyarrow.large_binary(),
    pyarrow.string_view(),
    pyarrow.binary_view(),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_form_and_compression(
    kind: pyarrow.DataType, form: str, compression: str | None, texts: list[str], tmp_path: Path
) -> None:
    some = texts[:40]
    values = [t.encode() for t in some] if "binary" in str(kind) else some
    path = write_arrow(
        tmp_path / "x.arrow", values, rows=7, kind=kind, form=form, compression=compression
    )
    assert read(path) == (some, [])
    assert find_sources([path], "text").sources[0].rows == 40


@pytest.mark.parametrize("suffix", [".arrows", ".feather", ".ipc", ".ARROW"])
def test_other_extensions(suffix: str, tmp_path: Path) -> None:
    assert read(write_arrow(tmp_path / f"x{suffix}", ["a", "b"], form="file"))[0] == ["a", "b"]


def test_all_inputs_of_the_same_rows_give_the_same_tokens(texts: list[str], tmp_path: Path) -> None:
    paths = [
        write_parquet(tmp_path / "a.parquet", texts),
        write_arrow(tmp_path / "b.arrow", texts),
        write_arrow(tmp_path / "c.arrow", texts, form="file", compression="zstd", rows=33),
        write_jsonl(tmp_path / "d.jsonl", texts),
        write_jsonl(tmp_path / "e.jsonl.gz", texts),
        write_jsonl(tmp_path / "f.jsonl.zst", texts),
    ]
    expected = reference.nanogpt(paths[1:2], fraction=0)
    for path in paths:
        out = tmp_path / f"out-{path.name}"
        tokenmill.prepare(path, out, val="none", workers=2)
        assert token_bytes(out) == expected, path.name
    # by the hash of their rows, the same documents are held out as of parquet
    splits = []
    for path in paths[:3]:
        tokenmill.prepare(path, tmp_path / f"val-{path.name}", val=0.1, workers=2)
        splits.append(token_bytes(tmp_path / f"val-{path.name}"))
    assert splits[0] == splits[1] == splits[2] == reference.nanogpt(paths[1:2], fraction=0.1)
    assert splits[0]["val.bin"]


def test_a_large_file_is_cut_into_runs_of_record_batches(texts: list[str], tmp_path: Path) -> None:
    many = texts * 25
    for form in FORMS:
        path = write_arrow(tmp_path / f"{form}.arrow", many, rows=100, form=form)
        source = find_sources([path], "text").sources[0]
        segments = list(segments_of(source, Reading("text")))
        assert len(segments) > 2
        assert [s.start for s in segments[1:]] == [s.stop for s in segments[:-1]]
        assert read(path) == (many, [])
        tokenmill.prepare(path, tmp_path / f"o{form}", val=0.01, workers=2)
        assert token_bytes(tmp_path / f"o{form}") == reference.nanogpt([path], fraction=0.01)


def test_record_batches_are_cut_by_constants_alone() -> None:
    mib = 1 << 20
    assert cut_record_batches([5 * mib] * 7, [9] * 7, {}) == [(0, 4, 0, -1), (4, 7, 0, -1)]
    large = [1, 50 * mib, 1]
    assert cut_record_batches(large, [1, 9, 1], {}) == [(0, 1, 0, -1), (1, 2, 0, -1), (2, 3, 0, -1)]
    assert cut_record_batches(large, [1, 8, 1], {1: 49 * mib})[1:-1] == [
        (1, 2, 0, 3), (1, 2, 3, 6), (1, 2, 6, -1),
    ]  # fmt: skip
    assert cut_record_batches(large, [1, 1, 1], {1: 49 * mib})[1:-1] == [(1, 2, 0, -1)]
    assert cut_record_batches(large, [1, 0, 1], {})[1:-1] == [(1, 2, 0, -1)]
    assert cut_record_batches([], [], {}) == []


def test_one_giant_record_batch_is_work_for_all_workers(texts: list[str], tmp_path: Path) -> None:
    many = texts * 25
    path = write_arrow(tmp_path / "x.arrow", many, rows=1 << 20)
    assert len(list(segments_of(find_sources([path], "text").sources[0], Reading("text")))) > 1
    result = tokenmill.prepare(path, tmp_path / "o", val=0.01, workers=2)
    assert result.run["units_encoded"] > 2
    assert token_bytes(tmp_path / "o") == reference.nanogpt([path], fraction=0.01)
    values: list[bytes | None] = [text.encode() for text in many]
    values[5000], values[5003] = b"\xff", None
    write_arrow(path, values, rows=1 << 20, kind=pyarrow.binary(), form="file")
    with pytest.raises(BadRowError, match=r"row 5000 \(record batch 0\): not valid UTF-8"):
        tokenmill.prepare(path, tmp_path / "p", val="none", workers=2)
    tokenmill.prepare(path, tmp_path / "p", val="none", workers=2, on_bad_row="quarantine")
    lines = (tmp_path / "p" / "quarantine.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [5000, 5003]
    # compressed, it is one chain
    write_arrow(path, many, rows=1 << 20, form="file", compression="lz4")
    tokenmill.prepare(path, tmp_path / "q", val="none", workers=2)
    assert token_bytes(tmp_path / "q") == reference.nanogpt([path], fraction=0)


def test_a_row_in_each_record_batch_is_no_batch_for_each_row(tmp_path: Path) -> None:
    texts = [f"row {i}" for i in range(500)]
    for kind in (None, pyarrow.string_view()):
        path = write_arrow(tmp_path / "x.arrow", texts, rows=1, kind=kind)
        source = find_sources([path], "text").sources[0]
        (segment,) = segments_of(source, Reading("text"))
        (batch,) = read_segment(source, segment, Reading("text"))
        assert batch.texts.documents == 500
        assert batch.rows.tolist() == list(range(500))


def many_columns(texts: list[bytes | None], kind: pyarrow.DataType) -> pyarrow.Table:
    """The text behind columns of every shape: its buffers must be found all the same."""
    n = len(texts)
    number = pyarrow.array(range(n))
    bytes_of = dict(zip(KINDS[::2], KINDS[1::2], strict=True))  # bad UTF-8 can be made of them only
    return pyarrow.table(
        {
            "null": pyarrow.nulls(n),
            "bool": pyarrow.array([i % 3 == 0 for i in range(n)]),
            "struct": pyarrow.array([{"a": i, "b": {"c": str(i)}} for i in range(n)]),
            "list": pyarrow.array([["x"] * (i % 3) for i in range(n)]),
            "map": pyarrow.array([[("k", 7)]] * n, pyarrow.map_("string", "int32")),
            "fixed": pyarrow.array([b"abc"] * n, pyarrow.binary(3)),
            "dictionary": pyarrow.array([str(i % 3) for i in range(n)]).dictionary_encode(),
            "decimal": number.cast(pyarrow.decimal128(30)),
            "time": number.cast(pyarrow.timestamp("us")),
            "pair": pyarrow.array([[1, 2]] * n, pyarrow.list_(pyarrow.int8(), 2)),
            "text": pyarrow.array(texts, bytes_of.get(kind, kind)).view(kind),
            "after": pyarrow.array(["y"] * n),
        }
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kind", [*KINDS, pyarrow.dictionary(pyarrow.int8(), pyarrow.binary())], ids=str
)
def test_a_large_record_batch_is_read_in_windows(
    kind: pyarrow.DataType, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.plan.SEGMENT_BYTES", 200)
    monkeypatch.setattr("tokenmill.documents.LARGE_BATCH", 400)
    monkeypatch.setattr("tokenmill.documents.BATCH_BYTES", 60)
    monkeypatch.setattr("tokenmill.arrow_large.WINDOW_ROWS", 11)
    texts: list[bytes | None] = [b"t%d " % i * (i % 9) for i in range(100)]
    for row in (0, 7, 8, 9, 33, 99):
        texts[row] = None
    texts[50] = b"\xff bad"
    table = many_columns(texts, kind)
    path = tmp_path / "x.arrow"
    new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    with new(path, table.schema) as writer:
        writer.write_table(table)
    good, bad = read(path)
    assert good == [t.decode() for i, t in enumerate(texts) if t is not None and i != 50]
    assert [row for row, _ in bad] == [0, 7, 8, 9, 33, 50, 99]
    source = find_sources([path], "text").sources[0]
    parts = len(list(segments_of(source, Reading("text"))))
    assert (parts > 3) == (kind in KINDS[:4])


def dictionary_stream(path: Path, change: str) -> list[str]:
    """Record batches of a dictionary column whose dictionary is kept, grows or is replaced."""
    words = [["a", "b"], ["a", "b", "c"] if change == "delta" else ["x", "y"]]
    if change == "none":
        words[1] = words[0]
    batches = [
        pyarrow.record_batch(
            {"n": [1] * 3, "text": pyarrow.DictionaryArray.from_arrays([1, 0, i], w)}
        )
        for i, w in enumerate(words)
    ]
    options = pyarrow.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pyarrow.ipc.new_stream(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return [text for batch in batches for text in batch.column("text").to_pylist()]


@pytest.mark.parametrize("change", ["none", "delta", "replaced"])
def test_dictionaries_that_stay_grow_or_are_replaced(change: str, tmp_path: Path) -> None:
    texts = dictionary_stream(tmp_path / "x.arrow", change)
    assert read(tmp_path / "x.arrow") == (texts, [])
    assert find_sources([tmp_path / "x.arrow"], "text").sources[0].chained == (change != "none")


def test_a_dictionary_or_views_of_one_long_text_are_decoded_in_small_batches(
    tmp_path: Path,
) -> None:
    text = pyarrow.array(["long words here " * 5800])
    indices = pyarrow.array([0] * 9000, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(indices, text)
    table = pyarrow.table({"text": column})
    with pyarrow.ipc.new_stream(tmp_path / "d.arrow", table.schema) as writer:
        writer.write_table(table)
    view = text.cast(pyarrow.string_view())
    buffers = [None, pyarrow.py_buffer(view.buffers()[1].to_pybytes() * 9000), view.buffers()[2]]
    views = pyarrow.Array.from_buffers(pyarrow.string_view(), 9000, buffers)
    table = pyarrow.table({"text": views})
    with pyarrow.ipc.new_file(tmp_path / "v.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("d.arrow", "v.arrow"):
        source = find_sources([tmp_path / name], "text").sources[0]
        assert source.size < 300_000
        (segment,) = segments_of(source, Reading("text"))
        rows = 0
        for batch in read_segment(source, segment, Reading("text")):
            rows += batch.row_count
            assert batch.texts.data.nbytes < 100 << 20
            if rows > 1000:
                break


def test_nulls_and_bad_utf8_are_named_by_record_batch_and_row(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"good"] * 25
    values[13], values[21] = b"\xff\xfe\xfd", None
    for kind in (pyarrow.binary(), pyarrow.binary_view()):
        path = write_arrow(tmp_path / "x.arrow", values, rows=10, kind=kind)
        with pytest.raises(BadRowError, match=r"row 13 \(record batch 1\): not valid UTF-8"):
            tokenmill.prepare(path, tmp_path / f"o-{kind}", workers=0)
        bad = read(path)[1]
        assert [row for row, _ in bad] == [13, 21]
        assert "null" in bad[1][1]


def test_columns_are_checked_as_those_of_parquet(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "x.arrow", ["a"])
    with pytest.raises(InputError, match="no column 'body'") as error:
        find_sources([path], "body")
    assert "id, text" in error.value.hint
    table = pyarrow.table({"text": [1]})
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match="is int64, not text"):
        find_sources([path], "text")


def test_an_empty_stream_and_empty_batches(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "x.arrow", [])
    assert read(path) == ([], [])
    schema = pyarrow.schema([("text", pyarrow.string())])
    with pyarrow.ipc.new_stream(path, schema) as writer:
        for texts in ([], ["a"], [], []):
            writer.write_batch(pyarrow.record_batch([pyarrow.array(texts, "string")], schema))
    assert read(path) == (["a"], [])


def test_a_legacy_stream_without_continuation_marks(texts: list[str], tmp_path: Path) -> None:
    table = pyarrow.table({"text": texts[:30]})
    options = pyarrow.ipc.IpcWriteOptions(use_legacy_format=True)
    for form, new in (("s", pyarrow.ipc.new_stream), ("f", pyarrow.ipc.new_file)):
        path = tmp_path / f"{form}.arrow"
        with new(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=7)
        assert read(path) == (texts[:30], [])


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_at_any_point_is_an_error_before_the_work(form: str, tmp_path: Path) -> None:
    """Also between two messages: a stream without its end mark may have lost rows."""
    content = write_arrow(tmp_path / "x.arrow", ["some text"] * 50, rows=9, form=form).read_bytes()
    for number in range(100):
        path = tmp_path / f"{number}.arrow"
        path.write_bytes(content[: len(content) * number // 100])
        with pytest.raises(InputError) as error:
            find_sources([path], "text")
        assert path.name in error.value.message
    for more in (b"\0", b"\0" * 8, content):
        (tmp_path / "more.arrow").write_bytes(content + more)
        with pytest.raises(InputError):
            find_sources([tmp_path / "more.arrow"], "text")


# Run in a child: a crash there is an exit by a signal, a hang a timeout, a bomb a MemoryError.
READ_DAMAGED = """
import faulthandler, os, random, resource, sys
from pathlib import Path
faulthandler.enable()
from tokenmill.config import Reading
from tokenmill.documents import read_segment
from tokenmill.errors import InputError, SourceError
from tokenmill.plan import segments_of
from tokenmill.sources import find_sources
import pyarrow.compute, tokenmill.plan, tokenmill.documents
if "parts" in sys.argv:
    tokenmill.plan.SEGMENT_BYTES = 200
    tokenmill.documents.LARGE_BATCH = 400
name = "data.text" if "struct" in sys.argv else "text"
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
original, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
outcomes = {}
for seed in range(int(sys.argv[3]), int(sys.argv[4])):
    chance = random.Random(seed)
    content = bytearray(original)
    for _ in range(chance.choice([1, 1, 1, 3, 20])):
        at = chance.randrange(len(content))
        how = chance.randrange(4)
        if how == 0:
            content[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            content[at] = chance.choice([0, 255, 127, 128])
        elif how == 2:
            at -= at % 4
            value = chance.choice([0, 1, -1, 2**31 - 1, -2**31, chance.randrange(2**16)])
            content[at:at + 4] = value.to_bytes(4, "little", signed=True)
        else:
            at -= at % 8
            value = chance.choice([1 << 62, -1, -8, 1 << 40, 1 << 33, -(1 << 63)])
            content[at:at + 8] = value.to_bytes(8, "little", signed=True)
    if chance.random() < 0.05:
        del content[chance.randrange(len(content)):]
    path = folder / f"{seed}.arrow"
    path.write_bytes(content)
    print(seed, file=sys.stderr, flush=True)
    try:
        source = find_sources([path], name).sources[0]
        for segment in segments_of(source, Reading(name)):
            for batch in read_segment(source, segment, Reading(name)):
                assert batch.row_count == batch.texts.documents + len(batch.bad)
                for i in range(batch.texts.documents):
                    batch.texts.document(i).decode()
        outcome = "read"
    except (InputError, SourceError) as error:
        assert path.name in error.message and error.hint, error.message
        outcome = type(error).__name__
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
    path.unlink()
print(outcomes)
if os.path.exists("/proc/self/status"):  # getrusage counts what the parent held when it forked
    peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
    assert int(peak.split()[1]) < 1 << 20, "over 1 GB of memory"
"""


def damaged_input(path: Path, what: str) -> Path:
    values: list[str | None] = [f"text number {i} é " * (i % 5) for i in range(60)]
    values[17] = None
    if what in ("dictionary", "struct"):
        column = pyarrow.array([f"a word or two {i % 7}" for i in range(60)]).dictionary_encode()
        table = pyarrow.table({"id": range(60), "text": column})
        if what == "struct":
            inner = [pyarrow.array(range(60)), pyarrow.array(values)]
            mask = pyarrow.array([i % 9 == 0 for i in range(60)])
            struct = pyarrow.StructArray.from_arrays(inner, ["n", "text"], mask=mask)
            table = pyarrow.table({"id": range(60), "data": struct})
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=13)
        return path
    kinds = {"view": pyarrow.string_view(), "large": pyarrow.large_string()}
    return write_arrow(
        path,
        values,
        rows=60 if what == "parts" else 13,
        kind=kinds.get(what),
        form="file" if what in ("file", "view") else "stream",
        compression=what if what in ("zstd", "lz4") else None,
    )


@pytest.mark.parametrize(
    "what", ["stream", "file", "parts", "struct", "large", "view", "dictionary", "zstd", "lz4"]
)
def test_damage_is_an_error_or_other_text_and_never_a_crash(what: str, tmp_path: Path) -> None:
    path = damaged_input(tmp_path / "x.arrow", what)
    count = int(os.environ.get("TOKENMILL_FUZZ", "150"))
    child = subprocess.run(
        [sys.executable, "-c", READ_DAMAGED, path, tmp_path, "0", str(count), what],
        capture_output=True,
        text=True,
        timeout=60 + count,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    assert "InputError" in child.stdout, child.stdout
