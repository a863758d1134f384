"""Text files: documents as `str.split` gives them, and cuts that no token notices."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import token_bytes
from support.inputs import write_parquet
from support.text import COMPRESS, cut_encoders, novel, small_ranges  # noqa: F401

import tokenmill as mill
from tokenmill.errors import InputError, UsageError
from tokenmill.inputs import segments
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.inputs.readers import fragments as text_batches
from tokenmill.inputs.readers import separators
from tokenmill.inputs.readers import text as text_files
from tokenmill.inputs.readers.separators import Separator
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.planning.options import unescape
from tokenmill.settings import Reading
from tokenmill.tokenizer.encoders.cuts import PLACES, next_cut


def source_of(path: Path) -> Source:
    text_files._known.cache_clear()
    return find_sources([path], "text").sources[0]


def read_all(path: Path, reading: Reading) -> list[tuple[int, bytes, str]]:
    """Position, bytes and fault of every document, put together from all ranges."""
    source = source_of(path)
    documents: list[tuple[int, bytes, str]] = []
    rows = 0
    open_: list[bytes] | None = None
    for segment in segments_of(source, reading):
        seen = 0
        for batch in read_segment(source, segment, reading):
            if batch.fragment is not None:
                assert (open_ is None) == batch.fragment.first, "pieces follow each other"
                open_ = [*(open_ or []), batch.texts.document(0)]
                assert int(batch.rows[0]) == seen
                if batch.fragment.last:
                    documents.append((int(batch.positions[0]), b"".join(open_), ""))
                    open_ = None
            else:
                both = [
                    (int(row), (int(position), batch.texts.document(i), ""))
                    for i, (row, position) in enumerate(
                        zip(batch.rows, batch.positions, strict=True)
                    )
                ] + [(bad.row, (-1, bad.content, bad.reason)) for bad in batch.bad]
                documents += [document for _, document in sorted(both)]
            assert batch.first_row == seen
            seen += batch.row_count
        rows += seen
    assert open_ is None
    assert rows == len(documents)
    return documents


def expected_documents(data: bytes, separator: bytes | None) -> list[bytes]:
    if separator is None:
        return [data]
    pieces = data.split(separator)
    return pieces if pieces[-1] else pieces[:-1]


SEPARATORS = [b"\n", b"\n\n", b"--", b"aba", b"<|endoftext|>", b"a b", b" ", "é".encode(), b"\0"]


@given(data=st.data(), separator=st.sampled_from([*SEPARATORS, None]), may_cut=st.booleans())
def test_any_ranges_give_the_documents_of_split(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    separator: bytes | None,
    may_cut: bool,
) -> None:
    letters = "ab \n-é国，<|endoftext|>"
    pieces = st.one_of(
        st.text(letters, max_size=12),
        st.sampled_from(
            [
                (separator or b"\n").decode(),
                "\n\n\n\n",
                "word word ",
                "ababab",
                "国家，国家",
                "x" * 40,
            ]
        ),
    )
    content = "".join(data.draw(st.lists(pieces, max_size=14))).encode()
    path = tmp_path_factory.mktemp("t") / "a.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", data.draw(st.sampled_from([1, 5, 32, 100])))
        patch.setattr(text_files, "TEXT_WINDOW", data.draw(st.sampled_from([1, 12, 60])))
        for module in (text_files, text_batches):
            patch.setattr(module, "BATCH_BYTES", 16)
            patch.setattr(module, "LONG_BYTES", 24)
        patch.setattr(text_files, "BLOCK_BYTES", 10)
        patch.setattr(separators, "BLOCK_BYTES", 7)
        reading = Reading("text", separator, may_cut)
        documents = read_all(path, reading)
        assert [text for _, text, _ in documents] == expected_documents(content, separator)
        place = 0
        for position, text, fault in documents:
            assert (position, fault) == (place, "")
            place += len(text) + len(separator or b"")
        compressed = path.with_name("a.txt.gz")
        compressed.write_bytes(gzip.compress(content))
        assert read_all(compressed, reading) == documents


@given(st.binary(max_size=80), st.sampled_from(SEPARATORS), st.booleans())
def test_bad_bytes_are_the_fault_of_their_document_alone(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, separator: bytes, may_cut: bool
) -> None:
    content = b"good text " + separator + noise + separator + b"more text and more words here"
    path = tmp_path_factory.mktemp("t") / "a.txt"
    path.write_bytes(content)
    expected = []
    for document in expected_documents(content, separator):
        try:
            document.decode()
            expected.append((document, ""))
        except UnicodeDecodeError as error:
            reason = f"not valid UTF-8 at byte {error.start} ({error.reason})"
            expected.append((document, reason))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", 16)
        patch.setattr(text_files, "TEXT_WINDOW", 6)
        for module in (text_files, text_batches):
            patch.setattr(module, "BATCH_BYTES", 8)
            patch.setattr(module, "LONG_BYTES", 12)
        patch.setattr(text_files, "BLOCK_BYTES", 5)
        patch.setattr(separators, "BLOCK_BYTES", 5)
        reading = Reading("text", separator, may_cut)
        found = [(text, fault) for _, text, fault in read_all(path, reading)]
        assert found == expected
        compressed = path.with_name("a.txt.gz")
        compressed.write_bytes(gzip.compress(content))
        found = [(text, fault) for _, text, fault in read_all(compressed, reading)]
        assert found == expected


@given(st.text("ab\n", max_size=60), st.sampled_from(["\n\n", "aa", "aba", "abab", "b"]))
def test_a_search_from_any_place_finds_what_one_from_the_start_does(
    text: str, separator: str
) -> None:
    data, found = text.encode(), Separator(separator.encode())
    pieces = data.split(found.value)
    ends = np.cumsum([len(piece) + found.length for piece in pieces[:-1]]).tolist()

    def read(start: int, stop: int) -> bytes:
        assert 0 <= start <= stop <= len(data)
        return data[start:stop]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(separators, "BLOCK_BYTES", 5)
        for place in range(len(data) + 1):
            start = found.sync(lambda a, b: read(a, min(b, len(data))), place)
            after = [end for end in ends if end >= place]
            got = found.next_end(read, start, place, len(data))
            assert got == (after[0] if after else -1), place
            before = [end for end in ends if end <= place]
            assert found.count(read, place) == len(before)


WORDS = st.one_of(
    st.sampled_from(
        ["word", "a", "I'm", "don't", "x's", "Z'S", " ", "  ", "\n", "\n\n", "\r\n", "\t", "123",
         "...", "!!\n", "国家", "，", "。", "、", "ひらがな", "한국", "слово", "é", "e\u0301", "'",
         "ſ", "K", "👍", "\u200b", "<tool_call>", "<|endoftext|>"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)  # fmt: skip


@given(st.lists(WORDS, min_size=3, max_size=30), st.booleans())
def test_pieces_encoded_apart_give_the_ids_of_the_whole(
    cut_encoders: dict[str, Callable[[str], list[int]]], words: list[str], spaced: bool
) -> None:
    data = (" " if spaced else "").join(words).encode()
    cuts = [match.end() for match in PLACES.finditer(data)]
    for name, encode in cut_encoders.items():
        whole = encode(data.decode())
        for cut in cuts:
            pieces = encode(data[:cut].decode()) + encode(data[cut:].decode())
            assert pieces == whole, (name, data[:cut], data[cut:])


def test_every_kind_of_cut_is_there() -> None:
    for text, cut in (
        ("a b", 1), ("ab  c", -1), ("a\nb", -1), ("국 국", 3), ("国，", 3), ("かな。", 6),
        ("слово да", 10), ("a 1", -1), ("é b", -1), ("1 a", -1),
    ):  # fmt: skip
        data = text.encode()
        assert next_cut(data, 0, len(data)) == cut, text
        if cut > 0:
            assert next_cut(data, cut, len(data)) == cut
            assert next_cut(data, cut + 1, len(data)) == -1
            assert next_cut(data, 0, cut + 1) == -1, "what stands behind must be seen"


@pytest.mark.parametrize("suffix", COMPRESS)
def test_text_gives_the_tokens_of_the_same_rows_as_parquet(
    texts: list[str], tmp_path: Path, suffix: str
) -> None:
    rows = [text for text in texts if "\0\n" not in text]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix]("\0\n".join([*rows, ""]).encode()))
    parquet = write_parquet(tmp_path / "a.parquet", rows)
    mill.prepare(path, tmp_path / "t", text_separator=r"\0\n", val="none", workers=0)
    mill.prepare(parquet, tmp_path / "p", val="none", workers=0)
    assert token_bytes(tmp_path / "t") == token_bytes(tmp_path / "p")


def test_small_things(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    (inputs / "a.txt").write_bytes(b"")
    (inputs / "b.txt").write_bytes(b"one\n\ntwo\n\n")
    result = mill.prepare(inputs, tmp_path / "o", val="none", workers=0)
    assert result.manifest.counts["documents"] == 2
    assert result.manifest.counts["empty"] == 1
    result = mill.prepare(
        [inputs / "a.txt", inputs / "b.txt"], tmp_path / "s", val="none", workers=0,
        text_separator=r"\n\n",
    )  # fmt: skip
    assert [source["documents"] for source in result.manifest.sources] == [0, 2]
    write_parquet(inputs / "c.parquet", ["x"])
    with pytest.raises(InputError, match="beside other inputs"):
        mill.prepare(inputs, tmp_path / "m", workers=0)
    with pytest.raises(UsageError, match="none of the inputs is a text file"):
        mill.prepare(inputs / "c.parquet", tmp_path / "m", text_separator="x", workers=0)


def test_separators_are_unescaped() -> None:
    assert unescape(r"\n\t\0\\n\r") == "\n\t\0\\n\r"
    assert unescape("<|endoftext|>") == "<|endoftext|>"
    for wrong in (r"\x", "\\", ""):
        with pytest.raises(UsageError, match="--text-separator"):
            unescape(wrong)


def test_a_sentencepiece_document_stays_whole(tmp_path: Path) -> None:
    segment = Segment(0, 0, 0, 100, 100)
    path = tmp_path / "a.txt"
    path.write_text("word " * 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", 100)
        batches = list(read_segment(source_of(path), segment, Reading("text", None, False)))
    assert [batch.texts.documents for batch in batches] == [1]
    assert batches[0].fragment is None
    assert batches[0].texts.size == 500


@pytest.mark.parametrize("separator", ["x yyy", " the end ", "字，字", "a b c d"])
def test_no_cut_inside_a_separator_at_the_end_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str
) -> None:
    """The search for its end stops at the window; the one for a cut must stop before it begins."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 40)
    monkeypatch.setattr(text_files, "TEXT_WINDOW", 20)
    monkeypatch.setattr(separators, "BLOCK_BYTES", 16)
    path = tmp_path / "a.txt"
    value = separator.encode()
    for start in range(40, 75):
        content = (b"ab,\n" * 40)[:start] + value + b"hello world and more" * 3
        path.write_bytes(content)
        documents = read_all(path, Reading("text", value, True))
        assert [text for _, text, _ in documents] == content.split(value), start


def test_a_compressed_document_without_a_cut_is_searched_once(tmp_path: Path) -> None:
    """Digits and line ends, 24 MB: at 20 MB/s, and not again for every block."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"12,34.5\n" * 3_000_000, 1))
    signs: list[int] = []
    searched = 0
    with pytest.MonkeyPatch.context() as patch:

        def count(data: bytes, position: int, stop: int) -> int:
            nonlocal searched
            searched += max(0, stop - position)
            return next_cut(data, position, stop)

        patch.setattr(text_files, "next_cut", count)
        segment = Segment(0, 0, 0, path.stat().st_size, 1)
        reading = Reading("text", None, True)
        batches = list(
            read_segment(source_of(path), segment, reading, None, lambda: signs.append(1))
        )
    assert sum(batch.texts.size for batch in batches) == 24_000_000
    assert searched < 30_000_000
    assert len(signs) > 4
