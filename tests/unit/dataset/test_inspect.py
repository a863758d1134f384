"""`inspect`: what a dataset holds, and where each document and token came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.inspect import sharded  # noqa: F401

import tokenmill
from tokenmill.dataset import inspection
from tokenmill.errors import UsageError, VerificationError
from tokenmill.system.store import FolderStore
from tokenmill.tokenizer.bundled import ENCODINGS
from tokenmill.tokenizer.encoders.decoding import encoding_of, open_decoder, printable


@pytest.fixture(scope="module")
def hashed(inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inspect") / "h"
    tokenmill.prepare(inputs, out, val=0.2, seed=9, drop_empty=True, workers=0)
    return out


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_ids_decode_to_the_text_they_came_from(name: str, texts: list[str]) -> None:
    codec, decoder = reference.encoding(name), open_decoder(ENCODINGS[name])
    for text in texts[::9]:
        ids = codec.encode_ordinary(text)
        assert decoder.text(ids) == text
        assert b"".join(decoder.token_bytes(i) for i in ids) == text.encode()
    for special, number in ENCODINGS[name].special_tokens.items():
        assert decoder.is_special(number)
        assert decoder.text([number]) == decoder.shown(number) == special
    assert decoder.token_bytes(10**6) == b""
    assert decoder.shown(10**6) == "<id 1000000>"


def test_shown_tokens_are_one_line_and_harmless() -> None:
    decoder = open_decoder(ENCODINGS["gpt2"])
    shown = [decoder.shown(i) for i in range(50257)]
    assert all(piece and piece.isprintable() for piece in shown)
    assert decoder.shown(198) == "\\n"
    assert printable("a\x1b[2Jb\tc\n\u202e\x7f", keep="\n\t") == "a\\x1b[2Jb\tc\n\\u202e\\x7f"
    assert decoder.text([447]) == "\\xe2\\x80"  # two bytes of three


def test_another_vocabulary_of_the_same_name_is_refused(sharded: Path) -> None:
    import msgspec

    known = tokenmill.open_dataset(sharded).settings
    with pytest.raises(VerificationError, match="another vocabulary"):
        encoding_of(msgspec.structs.replace(known, tokenizer_sha256="0" * 64))
    with pytest.raises(UsageError, match="cannot be found"):
        encoding_of(msgspec.structs.replace(known, tokenizer="mine.json"))


def test_every_document_leads_to_its_source_and_row(hashed: Path, inputs: list[Path]) -> None:
    dataset = tokenmill.open_dataset(hashed)
    found: dict[str, list[tuple[str, int]]] = {"train": [], "val": []}
    for source, path in enumerate(inputs):
        for row, (position, text) in enumerate(reference.rows(path)):
            if text:
                held = reference.held_out(9, source, position, 0.2)
                found["val" if held else "train"].append((path.name, row))
    for name, expected in found.items():
        documents = dataset[name].documents
        assert [documents.source(i) for i in range(len(documents))] == expected
        assert documents.source(-1) == expected[-1]
        with pytest.raises(IndexError):
            documents.source(len(documents))


def test_every_token_leads_to_its_document(sharded: Path) -> None:
    for split in tokenmill.open_dataset(sharded).values():
        ends = np.cumsum([len(document) for document in split.documents])
        for token in range(0, len(split.tokens), 371):
            assert split.documents.at(token) == int(np.searchsorted(ends, token, side="right"))
        assert split.documents.at(-1) == len(split.documents) - 1
        with pytest.raises(IndexError):
            split.documents.at(len(split.tokens))


def test_a_document_is_shown_as_it_was_read(hashed: Path, inputs: list[Path]) -> None:
    texts = {path.name: [text for _, text in reference.rows(path)] for path in inputs}
    documents = tokenmill.open_dataset(hashed)["val"].documents
    for number in range(0, len(documents), 5):
        view = tokenmill.inspect_document(hashed, document=number, split="val")
        assert view.text == texts[view.source][view.row]
        assert view.ids == documents[number].tolist()
        assert view.specials == [len(view.ids) - 1]
        assert view.pieces[-1] == "<|endoftext|>"
        assert sum(place["tokens"] for place in view.places) == view.tokens == len(view.ids)
    last = tokenmill.inspect_document(hashed, document=-1, split="val")
    assert last.document == len(documents) - 1


def test_a_document_over_several_files_and_a_border(sharded: Path) -> None:
    dataset = tokenmill.open_dataset(sharded)
    numbers = range(len(dataset["train"].documents))
    views = (tokenmill.inspect_document(sharded, document=i) for i in numbers[1:])
    view = next(view for view in views if len(view.places) > 1)
    number = view.document
    assert view.places[1]["first_token"] == 0
    assert not view.cut
    first = tokenmill.inspect_document(sharded, document=0)
    assert "it begins in val" in first.cut
    before = tokenmill.inspect_document(sharded, document=-1, split="val")
    assert "it goes on in train" in before.cut
    assert (before.source, before.row) == (first.source, first.row)
    token = tokenmill.inspect_document(sharded, token=view.first_token + 3)
    assert (token.document, token.token) == (number, 3)
    codec = reference.encoding("gpt2")
    assert token.text[: token.character] == codec.decode(token.ids[1:3])


def test_what_is_not_there_is_an_error(sharded: Path, tmp_path: Path) -> None:
    for wanted in ({"document": 10**9}, {"token": 10**9}, {"document": -(10**9)}):
        with pytest.raises(UsageError, match="has no"):
            tokenmill.inspect_document(sharded, **wanted)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no split 'test'"):
        tokenmill.inspect_document(sharded, document=0, split="test")
    with pytest.raises(UsageError, match="not a finished dataset"):
        tokenmill.inspect(tmp_path)


def test_lengths_are_those_of_all_documents(hashed: Path) -> None:
    dataset, summary = tokenmill.open_dataset(hashed), tokenmill.inspect(hashed)
    lengths = sorted(len(d) for split in dataset.values() for d in split.documents)
    found = summary.lengths
    assert (found.documents, found.tokens) == (len(lengths), sum(lengths))
    assert (found.minimum, found.maximum) == (lengths[0], lengths[-1])
    assert found.median == lengths[(len(lengths) - 1) // 2]
    for one in found.histogram:
        inside = [n for n in lengths if one.low <= n <= one.high]
        assert (one.documents, one.tokens) == (len(inside), sum(inside))
    assert sum(one.documents for one in found.histogram) == len(lengths)
    assert summary.counts["dropped"] > 0


@given(
    st.lists(
        st.one_of(st.integers(0, 5), st.integers(0, 1 << 20), st.integers(0, 1 << 40)), min_size=1
    ),
    st.integers(1, 7),
)
def test_lengths_of_anything_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block: int
) -> None:
    path = tmp_path_factory.mktemp("ends") / "x.ends"
    np.cumsum(lengths, dtype=np.uint64).tofile(path)
    before, inspection.INDEX_DOCUMENTS = inspection.INDEX_DOCUMENTS, block
    try:
        store = FolderStore(path.parent)
        blocks = list(inspection._length_blocks(store, [path.name]))
        median = inspection._median(store, [path.name], len(lengths), min(lengths), max(lengths))
    finally:
        inspection.INDEX_DOCUMENTS = before
    assert np.concatenate(blocks).tolist() == lengths
    assert max(map(len, blocks)) <= block
    assert median == sorted(lengths)[(len(lengths) - 1) // 2]


def test_colors_on_a_terminal_only(sharded: Path) -> None:
    from tokenmill.cli.documents import document_lines

    view = tokenmill.inspect_document(sharded, token=100)
    colored = "\n".join(document_lines(view, full=True, color=True))
    assert "\x1b[" in colored
    assert "\x1b" not in "\n".join(document_lines(view, full=True, color=False))
