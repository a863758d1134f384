"""Long JSON lines: read as any other line is, where the memory holds them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

import tokenmill
from tokenmill.errors import BadRowError, TooLargeError
from tokenmill.inputs.batch import Batch
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.inputs.readers import fragments as text_batches
from tokenmill.inputs.readers import jsonl as json_lines
from tokenmill.inputs.readers.jsonl import lines_before
from tokenmill.settings import Reading
from tokenmill.system.memory import COORDINATOR_BYTES, MemoryShare

TEXT = Reading("text", None, True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines over 20 KB are long, documents over 8 KB are cut."""
    monkeypatch.setattr(json_lines, "LONG_LINE_BYTES", 20_000)
    for module in (json_lines, text_batches):
        monkeypatch.setattr(module, "BATCH_BYTES", 4_000)
    monkeypatch.setattr(text_batches, "LONG_BYTES", 8_000)


def content_of() -> tuple[bytes, list[str]]:
    """Short and long lines, good and bad, and what the good ones hold."""
    words = " ".join(f'word{i} naïve 東京 \U0001f600 "quoted" back\\slash' for i in range(2000))
    texts = ["short", words, "a", words[::2], "the other", words + "!"]
    rows = [json.dumps({"id": i, "text": text}).encode() for i, text in enumerate(texts)]
    rows[3] = json.dumps({"text": texts[3], "x": "y" * 50_000}, ensure_ascii=False).encode()
    rows[5] = json.dumps({"skip": [words] * 2, "text": "no", "z": 1}).encode()[:-1]
    rows[5] += b', "text": ' + json.dumps(texts[5]).encode() + b"}"
    rows.insert(2, b" " * 40_000)
    rows.insert(3, b'{"text": "' + b"x " * 20_000 + b"\xff" + b"y" * 20_000 + b'"}')
    rows.insert(4, b'{"text": 7, "more": "' + b"x " * 20_000 + b'"}')
    rows.insert(5, b'{"text": "' + b"x " * 20_000 + b'"')
    rows.insert(6, b'{"texts": "' + b"x " * 20_000 + b'"}')
    return b"\xef\xbb\xbf" + b"\n".join(rows), texts


def read(path: Path, reading: Reading = TEXT, **options: object) -> list[Batch]:
    source = find_sources([path], reading.text_column).sources[0]
    segments = list(segments_of(source, reading))
    return [b for s in segments for b in read_segment(source, s, reading, **options)]  # type: ignore[arg-type]


def together(batches: list[Batch]) -> list[bytes]:
    texts: list[bytes] = []
    for batch in batches:
        parts = [batch.texts.document(i) for i in range(batch.texts.documents)]
        if batch.fragment is not None and not batch.fragment.first:
            texts[-1] += parts[0]
        else:
            texts += parts
    return texts


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("whole", [False, True])
def test_long_lines_among_short_ones(tmp_path: Path, suffix: str, whole: bool) -> None:
    content, texts = content_of()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    batches = read(path, whole=whole)
    assert together(batches) == [text.encode() for text in texts]
    assert max(batch.texts.size for batch in batches if not whole) <= 8_000 if not whole else True
    assert sum(batch.row_count for batch in batches) == 10
    assert sum(batch.line_count for batch in batches) == 11
    bad = [bad for batch in batches for bad in batch.bad]
    assert [(b.row, b.line) for b in bad] == [(2, 3), (3, 4), (4, 5), (5, 6)]
    assert [b.reason for b in bad] == [
        "not valid UTF-8: 'utf-8' codec can't decode byte 0xff in position 40000: "
        "invalid start byte",
        "field 'text' is int, where text should be",
        "not valid JSON: Input data was truncated",
        "no field 'text'",
    ]
    line = content.split(b"\n")[3]
    assert bad[0].content == line
    assert lines_before(find_sources([path], "text").sources[0], 1 << 40)[1] >= 0


@pytest.mark.usefixtures("small")
def test_of_a_long_bad_line_the_beginning_and_the_hash_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it counts for what is kept of it when units are cut."""
    monkeypatch.setattr(json_lines, "KEPT_BYTES", 100)
    line = b'{"text": "' + b"x " * 20_000
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
    batches = read(tmp_path / "a.jsonl")
    (bad,) = [bad for batch in batches for bad in batch.bad]
    assert (bad.content, bad.length) == (line[:100], len(line))
    assert bad.sha256 == hashlib.sha256(line).hexdigest()
    assert batches[-1].size == 100


@pytest.mark.usefixtures("small")
def test_a_long_line_set_aside_leaves_the_cuts_where_they_were(tmp_path: Path) -> None:
    """Its pieces are passed over as if they were there: units do not move."""
    content, texts = content_of()
    (tmp_path / "a.jsonl").write_bytes(content)
    before = read(tmp_path / "a.jsonl")
    after = read(tmp_path / "a.jsonl", aside={1: "it kills"})
    assert [batch.size for batch in before] == [batch.size for batch in after]
    (bad,) = [bad for batch in after for bad in batch.bad if bad.fatal]
    assert (bad.row, bad.line, bad.reason) == (1, 1, "it kills")
    assert bad.content == texts[1].encode()
    assert sum(batch.row_count for batch in after) == 10


def test_a_long_line_gives_the_tokens_of_any_other(tmp_path: Path) -> None:
    """Real sizes: a document of 20 MB between two short ones, by several workers."""
    text = 'some words of text, naïve and "quoted"\n' * 500_000
    rows = ["first", text, "last"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, val="none")
    assert result.manifest.counts["documents"] == 3
    table = {f"{i}.txt": row for i, row in enumerate(rows)}
    for name, row in table.items():
        (tmp_path / name).write_text(row)
    tokenmill.prepare([tmp_path / name for name in table], tmp_path / "p", workers=0, val="none")
    assert (tmp_path / "o" / "train.bin").read_bytes() == (
        tmp_path / "p" / "train.bin"
    ).read_bytes()


def test_a_long_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"words " * 2_000_000 + b"\\q" + b'"}\n')
    with pytest.raises(BadRowError, match=r"row 1 \(line 2\): not valid JSON.*\(byte 12000012\)"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, val="none")


@pytest.mark.parametrize("may_cut", [True, False])
def test_a_line_that_does_not_fit_is_refused_with_the_memory_it_needs(
    tmp_path: Path, may_cut: bool
) -> None:
    row = json.dumps({"text": "some words " * 3_000_000})
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + row + "\n")
    reading = Reading("text", None, may_cut)
    with pytest.raises(TooLargeError, match=rf"row 1 \(line 2\).*{len(row):,} bytes") as caught:
        read(tmp_path / "a.jsonl", reading, room=MemoryShare(350_000_000, 2))
    assert "--workers 1" in caught.value.hint
    (memory,) = re.findall(r"--memory (\d+)MB,", caught.value.hint)
    share = (int(memory) * 10**6 - COORDINATOR_BYTES) // 2
    batches = read(tmp_path / "a.jsonl", reading, room=MemoryShare(share, 2))
    assert together(batches) == [b"a", b"some words " * 3_000_000]
    with pytest.raises(TooLargeError):
        read(tmp_path / "a.jsonl", reading, room=MemoryShare(share - 10**7, 2))


def test_what_is_wrong_inside_a_long_line_is_said_without_building_it(tmp_path: Path) -> None:
    numbers = ",".join(["1"] * 5_000_000)
    (tmp_path / "a.jsonl").write_text('{"a": {"c": [' + numbers + "]}}\n")
    (bad,) = [b for batch in read(tmp_path / "a.jsonl", Reading("a.b")) for b in batch.bad]
    assert bad.reason == "no field 'a.b'"


def test_what_is_beside_the_text_takes_no_memory_for_encoding(tmp_path: Path) -> None:
    """A text that may not be cut is encoded whole, but not the line that it is in."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "more": "x" * 20_000_000}) + "\n")
    room = MemoryShare(350_000_000, 1, whole_factor=220)
    assert together(read(tmp_path / "a.jsonl", Reading("text"), room=room)) == [b"a"]
