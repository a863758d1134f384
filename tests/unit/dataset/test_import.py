"""`import`: token files that others made, with a manifest and an index of ours beside them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import reference
from support.adopted import foreign, inputs  # noqa: F401
from support.cases import quick
from support.commands import dataset_bytes

import tokenmill
from tokenmill.errors import InputError, RefusedError, UsageError
from tokenmill.output import file_maker
from tokenmill.output.manifest import Manifest
from tokenmill.system.interrupts import Interrupts

FORMATS = ("nanogpt", "llmc", "megatron", "datatrove")


def documents(inputs: list[Path], eot: str = "append") -> list[list[int]]:
    return [ids for _, _, ids in reference.documents(inputs, "gpt2", eot)]


@pytest.mark.parametrize("format", FORMATS)
def test_imported_files_are_a_dataset(
    format: str, foreign: Any, inputs: list[Path], tmp_path: Path
) -> None:
    folder = foreign(format)
    before = dataset_bytes(folder)
    result = tokenmill.adopt(folder, format=format)
    after = dataset_bytes(folder)
    assert {name: after[name] for name in before} == before, "their files are untouched"
    assert after.keys() - before.keys() == {
        "manifest.json", "index/pieces", "index/units", "index/train.ends", "index/train.runs",
        "index/val.ends", "index/val.runs",
    }  # fmt: skip
    made = tmp_path / "made"
    shards = {"shard_tokens": "20k"} if format in ("llmc", "datatrove") else {}
    tokenmill.prepare(inputs, made, format=format, name="web", workers=0, val=0.2, **shards)
    ours, theirs = tokenmill.open_dataset(made), tokenmill.open_dataset(folder)
    for split in ("train", "val"):
        expected = [d.tolist() for d in ours[split].documents]
        assert [d.tolist() for d in theirs[split].documents] == expected
    assert tokenmill.verify(folder).problems == []
    assert result.manifest.counts["documents"] == len(documents(inputs))
    assert tokenmill.inspect(folder).lengths == tokenmill.inspect(made).lengths
    view, shown = (tokenmill.inspect_document(f, document=3) for f in (folder, made))
    assert (view.ids, view.text) == (shown.ids, shown.text)
    assert view.source.endswith((".bin", ".ds"))
    assert tokenmill.adopt(folder, format=format).already_done


@pytest.mark.parametrize("format", FORMATS)
def test_imported_files_are_exported(
    format: str, foreign: Any, inputs: list[Path], tmp_path: Path
) -> None:
    folder = foreign(format)
    tokenmill.adopt(folder, format=format)
    tokenmill.export(folder, tmp_path / "e", format="flat")
    tokenmill.prepare(inputs, tmp_path / "p", format="flat", workers=0, val=0.2)
    for name in ("train_tokens.bin", "train_offsets.npy", "val_tokens.bin", "val_offsets.npy"):
        assert (tmp_path / "e" / name).read_bytes() == (tmp_path / "p" / name).read_bytes()
    assert tokenmill.verify(tmp_path / "e").ok
    with pytest.raises(UsageError, match="its text is not known"):
        tokenmill.verify_deep(tmp_path / "e")


@pytest.mark.parametrize("format", FORMATS)
def test_verify_finds_what_changes_in_imported_files(format: str, foreign: Any) -> None:
    folder = foreign(format)
    tokenmill.adopt(folder, format=format)
    for entry in Manifest.load(folder).files:
        content = (folder / entry.path).read_bytes()
        if not content:
            continue
        (folder / entry.path).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert len(tokenmill.verify(folder).problems) == 1, entry.path
        (folder / entry.path).write_bytes(content)


def test_a_stream_that_begins_within_a_document_keeps_its_separators(
    foreign: Any, tmp_path: Path
) -> None:
    """llm.c's first train shard goes on with the document that val's border cut."""
    folder = foreign("llmc", val="shard", shard_tokens=5000)
    tokenmill.adopt(folder, format="llmc")
    dataset = tokenmill.open_dataset(folder)
    assert dataset["train"].documents[0][0] != 50256
    assert dataset["train"].documents[1][0] == 50256
    with pytest.raises(UsageError, match="train begins within a document"):
        tokenmill.export(folder, tmp_path / "e", format="megatron")
    tokenmill.export(folder, tmp_path / "e", format="megatron", eot="prepend")
    found = tokenmill.open_dataset(tmp_path / "e")["train"].tokens[:]
    assert np.array_equal(found, dataset["train"].tokens[:])


def test_overwrite_never_removes_imported_files(
    foreign: Any, inputs: list[Path], tmp_path: Path
) -> None:
    folder = foreign("nanogpt")
    before = dataset_bytes(folder)
    tokenmill.adopt(folder, format="nanogpt")
    with pytest.raises(RefusedError, match="were imported, and tokenmill does not remove"):
        tokenmill.prepare(inputs, folder, workers=0, overwrite=True)
    tokenmill.adopt(folder, format="nanogpt", eot="prepend", overwrite=True)
    tokenmill.adopt(folder, format="nanogpt", overwrite=True)
    after = dataset_bytes(folder)
    assert {name: after[name] for name in before} == before
    with pytest.raises(RefusedError, match="another plan"):
        tokenmill.adopt(folder, format="nanogpt", eot="prepend")


def test_an_import_never_removes_what_prepare_made(inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0)
    before = dataset_bytes(out)
    for overwrite in (False, True):
        with pytest.raises(RefusedError, match="so they need no import") as error:
            tokenmill.adopt(out, format="nanogpt", overwrite=overwrite)
        assert "overwrite" not in error.value.hint
    assert dataset_bytes(out) == before


def test_an_import_can_be_interrupted_while_it_reads(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a large file may be a few bytes, and is written when all is read."""
    folder = foreign("nanogpt")
    size = (folder / "train.bin").stat().st_size
    asked = 0

    def check(self: Interrupts) -> None:
        nonlocal asked
        asked += 1
        if asked > size // 2000:
            raise KeyboardInterrupt

    monkeypatch.setattr(file_maker, "PIECE_BYTES", 1000)
    monkeypatch.setattr(Interrupts, "check", check)
    with pytest.raises(KeyboardInterrupt):
        tokenmill.adopt(folder, format="nanogpt")
    monkeypatch.undo()
    assert not (folder / "manifest.json").exists()
    tokenmill.adopt(folder, format="nanogpt")
    assert tokenmill.verify(folder).ok


def test_an_index_beside_the_tokens_is_read_in_pieces(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = foreign("megatron")
    monkeypatch.setattr(file_maker, "PIECE_BYTES", 1000)
    manifest = tokenmill.adopt(folder, format="megatron").manifest
    assert all(f.pieces == -(-f.size // 1000) for f in manifest.files if f.kind == "sidecar")
    assert tokenmill.verify(folder).ok


def spoil(folder: Path, name: str, at: int, data: bytes) -> None:
    content = bytearray((folder / name).read_bytes())
    content[at : at + len(data)] = data
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("format", "file", "at", "data", "message"),
    quick(
        [
            (
                "nanogpt",
                "train.bin",
                400,
                b"\xff\xff",
                "train.bin: token 200 is 65535, and gpt2 has",
            ),
            ("llmc", "web_train_000002.bin", 0, b"GGUF", "not a file of llm.c"),
            ("llmc", "web_train_000002.bin", 8, b"\x07\0\0\0", "its header says 7 tokens"),
            ("megatron", "web_train_text_document.idx", 0, b"X", "not an index of Megatron"),
            ("megatron", "web_train_text_document.idx", 17, b"\x05", "dtype code 5"),
            (
                "megatron",
                "web_train_text_document.idx",
                18,
                b"\x01",
                "not as long as its counts say",
            ),
            ("megatron", "web_train_text_document.idx", 34, b"\x01\0", "do not follow each other"),
            ("datatrove", "train/000_web.ds.index", 8, b"\0" * 8, "end before they begin"),
            ("datatrove", "train/000_web.ds.index", 0, b"\x02", "has no separator 50256 behind it"),
        ],
        first=4,
        several=True,
    ),
)
def test_files_that_contradict_themselves_are_not_imported(
    format: str, file: str, at: int, data: bytes, message: str, foreign: Any
) -> None:
    folder = foreign(format)
    spoil(folder, file, at, data)
    with pytest.raises(InputError) as error:
        tokenmill.adopt(folder, format=format, eot="append" if format == "datatrove" else None)
    assert message in error.value.message
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    ("format", "file", "message"),
    [
        ("nanogpt", "train.bin", "are not a whole number of uint16 tokens"),
        ("llmc", "web_train_000002.bin", "are not a whole number of uint16 tokens"),
        ("megatron", "web_train_text_document.bin", "are not a whole number of uint16 tokens"),
        ("megatron", "web_train_text_document.idx", "not as long as its counts say"),
        ("datatrove", "train/000_web.ds.index", "are not a whole number of uint64"),
        ("datatrove", "val/000_web.ds.index", "documents end at token"),
    ],
)
def test_files_that_are_cut_short_are_not_imported(
    format: str, file: str, message: str, foreign: Any
) -> None:
    folder = foreign(format)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: -8 if file == "val/000_web.ds.index" else -1])
    with pytest.raises(InputError, match=message):
        tokenmill.adopt(folder, format=format)


def test_a_folder_may_be_named_from_where_one_stands(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for format in FORMATS:
        folder = foreign(format)
        monkeypatch.chdir(folder.parent)
        tokenmill.adopt(folder.name, format=format)
        assert tokenmill.verify(folder).ok


def test_shards_with_a_hole_between_them_are_not_imported(foreign: Any) -> None:
    folder = foreign("llmc", val="none")
    (folder / "web_train_000002.bin").unlink()
    with pytest.raises(InputError, match=r"train_000003.bin does not follow web_train_000001"):
        tokenmill.adopt(folder, format="llmc")


def test_an_index_without_its_tokens_is_named(foreign: Any) -> None:
    folder = foreign("megatron")
    (folder / "web_train_text_document.bin").unlink()
    with pytest.raises(InputError, match=r"web_train_text_document.bin: missing"):
        tokenmill.adopt(folder, format="megatron")


def test_files_without_a_separator_are_one_document_only_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    """nanoGPT's shakespeare has none; but so do the files of every other tokenizer."""
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    for tokenizer in ("gpt2", "cl100k_base"):  # whose separator no uint16 is
        with pytest.raises(InputError, match="no separator") as error:
            tokenmill.adopt(tmp_path, format="nanogpt", tokenizer=tokenizer, dtype="uint16")
        assert "eot='none'" in error.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["train.bin"], "nothing is left behind"
    tokenmill.adopt(tmp_path, format="nanogpt", eot="none")
    assert len(tokenmill.open_dataset(tmp_path)["train"].documents) == 1


def test_metadata_that_is_not_text_says_nothing(foreign: Any) -> None:
    folder = foreign("datatrove")
    (folder / "train/000_web.ds.metadata").write_bytes(b"\xff\xfe|2\n")
    tokenmill.adopt(folder, format="datatrove")
    assert tokenmill.verify(folder).ok


def test_an_empty_file_is_a_split_without_documents(foreign: Any, tmp_path: Path) -> None:
    folder = foreign("nanogpt")
    (folder / "train.bin").write_bytes(b"")
    tokenmill.adopt(folder, format="nanogpt")
    tokenmill.export(folder, tmp_path / "e", format="flat")
    dataset = tokenmill.open_dataset(tmp_path / "e")
    assert list(dataset) == list(tokenmill.open_dataset(folder)) == ["val"]
    assert len(dataset["val"].documents) == len(tokenmill.open_dataset(folder)["val"].documents)


def test_megatron_documents_of_several_sequences_are_whole(tmp_path: Path) -> None:
    """As --split-sentences writes them: two sequences, one document; then one of one."""
    lengths, starts = [2, 3, 4], [0, 2, 3]
    tokens = np.array([5, 6, 7, 8, 50256, 1, 2, 3, 50256], "<u2")
    tokens.tofile(tmp_path / "s_text_sentence.bin")
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 3)
    index += np.array(lengths, "<i4").tobytes() + np.array([0, 4, 10], "<i8").tobytes()
    (tmp_path / "s_text_sentence.idx").write_bytes(index + np.array(starts, "<i8").tobytes())
    tokenmill.adopt(tmp_path, format="megatron")
    found = [d.tolist() for d in tokenmill.open_dataset(tmp_path)["train"].documents]
    assert found == [[5, 6, 7, 8, 50256], [1, 2, 3, 50256]]


def test_there_must_be_something_to_import(tmp_path: Path, foreign: Any) -> None:
    with pytest.raises(InputError, match="no train files of nanogpt"):
        tokenmill.adopt(tmp_path, format="nanogpt")
    with pytest.raises(UsageError, match="no such folder"):
        tokenmill.adopt(tmp_path / "none", format="nanogpt")
    with pytest.raises(UsageError, match="cannot be imported"):
        tokenmill.adopt(tmp_path, format="hf")
    folder = foreign("datatrove")
    (folder / "train/000_web.ds.index").unlink()
    with pytest.raises(InputError, match="documents cannot be found without it"):
        tokenmill.adopt(folder, format="datatrove")
