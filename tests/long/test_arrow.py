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
from support import reference
from support.arrow import FORMS
from support.commands import token_bytes
from support.inputs import write_arrow
from support.reading import read

import tokenmill
from tokenmill.errors import BadRowError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import segments_of
from tokenmill.settings import Reading


def test_a_large_file_is_cut_into_runs_of_record_batches(texts: list[str], tmp_path: Path) -> None:
    many = texts * 85
    for form in FORMS:
        path = write_arrow(tmp_path / f"{form}.arrow", many, rows=100, form=form)
        source = find_sources([path], "text").sources[0]
        segments = list(segments_of(source, Reading("text")))
        assert len(segments) > 2
        assert [s.start for s in segments[1:]] == [s.stop for s in segments[:-1]]
        assert read(path) == (many, [])
        tokenmill.prepare(path, tmp_path / f"o{form}", val=0.01, workers=2)
        assert token_bytes(tmp_path / f"o{form}") == reference.nanogpt([path], fraction=0.01)


def test_one_giant_record_batch_is_work_for_all_workers(texts: list[str], tmp_path: Path) -> None:
    many = texts * 85
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


# Run in a child: a crash there is an exit by a signal, a hang a timeout, a bomb a MemoryError.
READ_DAMAGED = """
import faulthandler, os, random, resource, sys
from pathlib import Path
faulthandler.enable()
from tokenmill.settings import Reading
from tokenmill.inputs.kinds import read_segment
from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.kinds import segments_of
from tokenmill.inputs.find import find_sources
import pyarrow.compute, tokenmill.inputs.segments, tokenmill.inputs.readers.arrow
if "parts" in sys.argv:
    tokenmill.inputs.segments.SEGMENT_BYTES = 200
    tokenmill.inputs.readers.arrow.LARGE_BATCH = 400
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
