"""JSON lines that are not held whole: read as any other line is, in a fraction of its memory."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill import json_lines, text_batches
from tokenmill.batch import Batch
from tokenmill.config import Reading
from tokenmill.documents import read_segment
from tokenmill.errors import BadRowError, TooLargeError
from tokenmill.fields import row_fault, text_decoder
from tokenmill.json_condensed import Condensed, decode_string, safe_end
from tokenmill.json_lines import FAULTS, lines_before
from tokenmill.memory import Room
from tokenmill.plan import segments_of
from tokenmill.sources import find_sources

# Whatever may go wrong in a line, and what looks as if it would.
BITS = [
    b'"', b"\\", b"\\\\", b'\\"', b"\\n", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b"\\udc00",
    b"\\uzz", b"\\q", b"a", b"words here ", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xff", b"\xc3",
    b"\x80", b"\x01", b"{", b"}", b",", b":", b" " * 300, b"text", b"a.b", b'"text":"',
    b'"a":{"b":"', b'"a.b":"', b'","', b'"}', b"1", b"[1,2]", b"null", b"x" * 50, b"yz" * 30,
    b"\xf0\x9f",
]  # fmt: skip
debris = st.lists(st.sampled_from(BITS), max_size=14).map(b"".join)
letters = st.text(max_size=300, alphabet=st.characters(exclude_categories=["Cs"]))
good = st.one_of(
    letters.map(lambda text: json.dumps(text).encode()[1:-1]),
    letters.map(lambda text: json.dumps(text, ensure_ascii=False).encode()[1:-1]),
)
values = st.one_of(
    good.map(lambda text: b'"' + text + b'"'),
    good.map(lambda text: b'"' + text + b'"'),
    st.tuples(good, debris).map(lambda both: b'"' + both[0] + both[1] + b'"'),
    st.sampled_from([b"1", b"null", b"{}", b'[1,"x"]', b"true"]),
)
names = st.sampled_from([b"text", b"a.b", b"a", b"b", b"zz", b"te\\u0078t", b"k" * 40])
pairs = st.tuples(names, values).map(lambda pair: b'"' + pair[0] + b'":' + pair[1])
objects = st.lists(pairs, max_size=4).map(lambda them: b"{" + b",".join(them) + b"}")
nested = st.tuples(objects, st.lists(pairs, max_size=2)).map(
    lambda parts: b'{"a":' + parts[0] + b"".join(b"," + pair for pair in parts[1]) + b"}"
)
broken = st.one_of(debris, st.tuples(objects, debris).map(b"".join))
lines = st.one_of(objects, nested, objects, nested, broken).map(lambda b: b.replace(b"\n", b" "))


def usual(line: bytes, column: str) -> tuple[str, object]:
    try:
        return "text", text_decoder(column)(line)
    except FAULTS as error:
        return ("bad", row_fault(error, line, column)) if line.strip() else ("blank", None)


def condensed(line: bytes, column: str, head: int, part: int, step: int) -> tuple[str, object]:
    passing = Condensed(head=head, part=part)
    for start in range(0, len(line), step):
        passing.add(line[start : start + step])
    passing.end()
    try:
        text = text_decoder(column)(bytes(passing.kept))
    except FAULTS as error:
        return ("blank", None) if passing.blank else ("bad", passing.fault(error, column))
    string = passing.marked(text)
    if string is None:
        return "text", text
    raw = line[string.start : string.stop]
    pieces = (raw[start : start + step] for start in range(0, len(raw), step))
    text = b"".join(decode_string(pieces, part))
    assert len(text) == string.text_bytes
    return "text", text


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@example(
    b'{"text":"' + b"\\u001f" * 3 + b"\\ud800\\udc00" * 2 + b"\xf0\x9f" + b"x" * 50 + b'"}',
    "text",
    44,
    16,
    1,
)
@example(b'{"text":"' + b"y" * 200 + b"\xff" + b"x" * 200 + b'"}', "text", 44, 16, 7)
@given(
    lines,
    st.sampled_from(["text", "a.b", "a"]),
    st.sampled_from([44, 64]),
    st.sampled_from([16, 24, 64]),
    st.integers(1, 90),
)
def test_a_line_in_pieces_is_what_the_usual_decoder_makes_of_it(
    line: bytes, column: str, head: int, part: int, step: int
) -> None:
    """The same text, or the same reason why there is none, with the same place in the line."""
    assert condensed(line, column, head, part, step) == usual(line, column)


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"abc", 3),
        (b"ab\xc3", 2),
        (b"ab\xc3\xa9", 4),
        (b"ab\xf0\x9f\x98", 2),
        (b"ab\\", 2),
        (b"ab\\\\", 4),
        (b"ab\\\\\\", 4),
        (b"ab\\n", 4),
        (b"ab\\u12", 2),
        (b"ab\\u12ab", 8),
        (b"ab\\ud83d", 2),
        (b"ab\\ud83d\\ude0", 2),
        (b"ab\\ud83d\\ude00", 14),
        (b"ab\\\\ud83d", 9),
    ],
)
def test_a_part_ends_where_nothing_is_torn(data: bytes, end: int) -> None:
    assert safe_end(data) == end


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines over 20 KB are long, documents over 8 KB are cut."""
    monkeypatch.setattr(json_lines, "LONG_LINE_BYTES", 20_000)
    monkeypatch.setattr(json_lines, "LONG_BYTES", 8_000)
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


def read(path: Path, **options: object) -> list[Batch]:
    source = find_sources([path], "text").sources[0]
    reading = Reading("text", None, True)
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
    monkeypatch.setattr(json_lines, "KEPT_BYTES", 100)
    line = b'{"text": "' + b"x " * 20_000
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
    (bad,) = [bad for batch in read(tmp_path / "a.jsonl") for bad in batch.bad]
    assert (bad.content, bad.length) == (line[:100], len(line))
    assert bad.sha256 == hashlib.sha256(line).hexdigest()


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


@pytest.mark.usefixtures("small")
def test_pieces_of_a_long_line_are_those_of_a_whole_document(tmp_path: Path) -> None:
    _, texts = content_of()
    document = texts[1].encode()
    parts = (document[i : i + 777] for i in range(0, len(document), 777))
    from tokenmill.batch import Fragment
    from tokenmill.text_batches import fragments, fragments_of

    whole = fragments(document, 3, Fragment(True, True), 9)
    for one, other in zip(whole, fragments_of(parts, 3, 9), strict=True):
        assert one.texts.document(0) == other.texts.document(0)
        assert (one.fragment, one.row_count, one.rows) == (
            other.fragment, other.row_count, other.rows,
        )  # fmt: skip


def test_a_long_line_gives_the_tokens_of_any_other(tmp_path: Path) -> None:
    """Real sizes: a document of 20 MB between two short ones, by several workers."""
    text = 'some words of text, naïve and "quoted"\n' * 500_000
    rows = ["first", text, "last"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    result = tokenmill.prepare(path, tmp_path / "o", workers=2, val="none")
    assert result.manifest.counts["documents"] == 3
    table = {f"{i}.txt": row for i, row in enumerate(rows)}
    for name, row in table.items():
        (tmp_path / name).write_text(row)
    tokenmill.prepare([tmp_path / name for name in table], tmp_path / "p", workers=2, val="none")
    assert (tmp_path / "o" / "train.bin").read_bytes() == (
        tmp_path / "p" / "train.bin"
    ).read_bytes()


def test_a_long_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"words " * 2_000_000 + b"\\q" + b'"}\n')
    with pytest.raises(BadRowError, match=r"row 1 \(line 2\): not valid JSON.*\(byte 12000012\)"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, val="none")


def test_a_long_line_of_many_short_strings_is_refused_with_the_memory_it_needs(
    tmp_path: Path,
) -> None:
    """What is not in long strings has to be held."""
    row = {"text": "a", "numbers": ["short"] * 4_000_000}
    (tmp_path / "a.jsonl").write_bytes(msgspec.json.encode(row) + b"\n")
    with pytest.raises(TooLargeError, match="beside its long strings") as caught:
        read(tmp_path / "a.jsonl", room=Room(350_000_000, 2))
    assert "--memory" in caught.value.hint
    assert "--workers 1" in caught.value.hint
