"""From one format to others: `export`, several formats from one run, and short last shards."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.cases import quick
from support.commands import command, dataset_bytes
from support.conversion import OURS, PLANS_OWN, SHARDS, files_in, inputs, options_for, source  # noqa: F401
from support.shard_of import InMemory

import tokenmill
from tokenmill.dataset import conversion
from tokenmill.dataset import export as exporting
from tokenmill.errors import RefusedError, TokenmillError, UsageError, VerificationError
from tokenmill.formats import FORMATS
from tokenmill.formats.base import MadeFile
from tokenmill.output import file_maker
from tokenmill.output.manifest import Manifest, checksum_of_digests
from tokenmill.planning.options import Options, plan_settings
from tokenmill.tokens import reframe, shards
from tokenmill.tokens.packing import frame_of
from tokenmill.tokens.placement import CutRule
from tokenmill.tokens.reframe import ReframedStream
from tokenmill.tokens.shards import cuts_of


@pytest.mark.parametrize("format", quick(FORMATS, "llmc", "megatron", "mds", "parquet", "olmo"))
def test_an_export_is_what_prepare_would_have_written(
    format: str, source: Path, inputs: list[Path], tmp_path: Path
) -> None:
    options = options_for(format)
    result = tokenmill.export(source, tmp_path / "e", **options)
    tokenmill.prepare(inputs, tmp_path / "p", workers=0, name="x", val=0.1, **options)
    assert files_in(tmp_path / "e") == files_in(tmp_path / "p")
    assert tokenmill.verify(tmp_path / "e").problems == []
    assert tokenmill.verify_deep(tmp_path / "e", sample="50").ok
    assert not (tmp_path / "e/.tokenmill").exists()
    assert tokenmill.export(source, tmp_path / "e", **options).already_done
    assert result.manifest.counts == Manifest.load(source).counts


@pytest.mark.parametrize(
    "through", quick(["mds", "parquet", "hf", "litdata", "megatron", "flat"], first=2)
)
def test_there_and_back_are_the_same_files(through: str, source: Path, tmp_path: Path) -> None:
    tokenmill.export(source, tmp_path / "there", **options_for(through))
    tokenmill.export(tmp_path / "there", tmp_path / "back", name="x", **options_for("llmc"))
    assert files_in(tmp_path / "back") == files_in(source)


@pytest.mark.parametrize(
    "eots", quick([("append", "prepend"), ("prepend", "append"), ("append", "none")], first=1)
)
@pytest.mark.parametrize("bos", [None, 1234])
def test_separators_move_with_their_documents(
    eots: tuple[str, str], bos: int | None, inputs: list[Path], tmp_path: Path
) -> None:
    before, after = eots
    given = {"workers": 0, "val": "tokens:5000", "bos_token": bos}
    tokenmill.prepare(inputs[:2], tmp_path / "a", eot=before, **given)
    tokenmill.export(tmp_path / "a", tmp_path / "e", format="flat", eot=after)
    held = tokenmill.open_dataset(tmp_path / "e").manifest.splits[0].documents
    if after == "none":
        given["val"] = f"docs:{held}"
    tokenmill.prepare(inputs[:2], tmp_path / "p", format="flat", eot=after, **given)
    assert files_in(tmp_path / "e") == files_in(tmp_path / "p")
    made, wanted = (Manifest.load(tmp_path / name) for name in "ep")
    assert made.counts == wanted.counts
    assert made.sources == wanted.sources


def test_a_shard_held_out_stays_held_out(inputs: list[Path], tmp_path: Path) -> None:
    tokenmill.prepare(inputs, tmp_path / "a", workers=0, **options_for("llmc", val="shard"))
    tokenmill.export(tmp_path / "a", tmp_path / "e", format="megatron")
    a, e = (tokenmill.open_dataset(tmp_path / name) for name in "ae")
    # the document that the border cut in two is whole, and in val, where it begins
    assert len(e["val"].documents) == len(a["val"].documents)
    assert len(e["train"].documents) == len(a["train"].documents) - 1
    assert [d.tolist() for d in e["val"].documents][:-1] == [
        [*d.tolist()[1:], 50256] for d in a["val"].documents
    ][:-1]


def test_a_damaged_dataset_is_not_exported(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "a")
    victim = tmp_path / "a/x_train_000001.bin"
    content = bytearray(victim.read_bytes())
    content[5000] ^= 1
    victim.write_bytes(content)
    with pytest.raises(VerificationError, match="is damaged") as error:
        tokenmill.export(tmp_path / "a", tmp_path / "e", format="nanogpt")
    assert "x_train_000001.bin: changed in bytes" in error.value.message
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "modded", "eot": "append"}, UsageError, "finds documents by the 50256"),
        ({"format": "mds", "cut": "exact"}, UsageError, "none can be cut in two"),
        ({"format": "nope"}, UsageError, "unknown format"),
        ({"format": "nanogpt", "val": "none"}, UsageError, "has no keyword 'val'"),
    ],
)
def test_an_export_that_cannot_be_is_refused(
    options: dict[str, Any], error: type[TokenmillError], message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        tokenmill.export(source, tmp_path / "e", **options)
    assert not (tmp_path / "e").exists()


def test_an_export_refuses_its_source_as_output_and_anothers_output(
    source: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is the dataset itself"):
        tokenmill.export(source, source, format="mds")
    tokenmill.export(source, tmp_path / "e", format="flat")
    with pytest.raises(RefusedError, match="another plan"):
        tokenmill.export(source, tmp_path / "e", format="nanogpt")
    tokenmill.export(source, tmp_path / "e", format="nanogpt", overwrite=True)
    assert sorted(p.name for p in (tmp_path / "e").iterdir()) == [
        "index", "manifest.json", "run.json", "train.bin", "val.bin",
    ]  # fmt: skip


def test_a_resumed_export_makes_only_what_is_missing_or_damaged(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, out = tmp_path / "clean", tmp_path / "o"
    tokenmill.export(source, clean, **options_for("mds"))
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "carry_out", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tokenmill.export(source, out, **options_for("mds"))
    damaged = out / ".tokenmill/files/mds-tokens-train-000001"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    made: list[str] = []
    note = file_maker.FileMaker._note

    def noting(self: file_maker.FileMaker, one: MadeFile) -> None:
        made.append(one.working)
        note(self, one)

    monkeypatch.setattr(file_maker.FileMaker, "_note", noting)
    tokenmill.export(source, out, **options_for("mds"))
    assert made == ["mds-tokens-train-000001"]
    assert dataset_bytes(out) == dataset_bytes(clean)


def test_an_export_that_cannot_fit_is_refused_before_anything_is_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokenmill.open_dataset(source).manifest.counts["tokens"]
    monkeypatch.setattr(exporting, "free_bytes", lambda folder: 4 * tokens - 1)
    with pytest.raises(RefusedError, match="are free on its disk"):
        tokenmill.export(source, tmp_path / "out", format="flat")  # 4 bytes a token
    assert not (tmp_path / "out").exists()
    tokenmill.export(source, tmp_path / "out", format="parquet")  # is packed: may well fit
    monkeypatch.setattr(exporting, "free_bytes", lambda folder: 4 * tokens)
    tokenmill.export(source, tmp_path / "flat", format="flat")


def test_the_command_exports_and_says_what_it_wrote(source: Path, tmp_path: Path) -> None:
    done = command("export", source, "-o", tmp_path / "e", "--format", "megatron")
    assert done.returncode == 0, done.stderr
    assert "x_train_text_document.bin" in done.stdout
    assert "megatron train:" in done.stdout
    assert "load it:" in done.stdout
    assert f"IndexedDataset('{tmp_path / 'e'}/x_train_text_document')" in done.stdout
    refused = command(
        "export", source, "-o", tmp_path / "e", "--format", "megatron", "--eot", "none"
    )
    assert refused.returncode == 2
    assert "eot: append -> none" in refused.stderr
    assert command("export", source, "-o", tmp_path / "f").returncode == 2


def test_a_first_shard_is_held_out_only_where_all_formats_have_shards() -> None:
    for formats, val in (
        ("llmc,megatron", "0.0005"),
        ("llmc,modded", "shard"),
        ("llmc,mds", "shard:100000000"),
        ("megatron,llmc", "none"),
        ("nanogpt,llmc", "0.0005"),
    ):
        assert str(plan_settings(Options(format=formats), "out").val) == val


def test_an_explicit_option_holds_for_all_formats(inputs: list[Path], tmp_path: Path) -> None:
    result = tokenmill.prepare(
        inputs[0], tmp_path / "o", format="nanogpt,megatron", eot="none", dtype="uint32", workers=0
    )
    settings = result.manifest.plan["settings"]
    assert (settings["eot"], settings["dtype"]) == ("none", "uint32")
    assert [(m["eot"], m["dtype"]) for m in settings["more"]] == [("none", "uint32")]
    again = tokenmill.prepare(
        inputs[0], tmp_path / "o", format="nanogpt,megatron", eot="none", dtype="uint32", workers=0
    )
    assert again.already_done


def test_an_option_of_shards_is_for_those_that_have_them(
    inputs: list[Path], tmp_path: Path
) -> None:
    many = tokenmill.prepare(
        inputs[0], tmp_path / "o", format="llmc,megatron,mds", val=0.1, shard_tokens=5000,
        compression="zstd", last_shard="merge", min_shard_tokens=2500, workers=0,
    )  # fmt: skip
    files = [f.path for f in many.manifest.files if f.kind == "tokens" and f.split == "train"]
    assert sum(path.startswith("llmc/") for path in files) > 2
    assert sum(path.startswith("mds/") and path.endswith(".zstd") for path in files) > 2
    alone = tokenmill.prepare(inputs[0], tmp_path / "m", format="megatron", val=0.1, workers=0)
    for file in alone.manifest.files:
        if file.kind in ("tokens", "sidecar"):
            name = file.path.replace("m_", "o_", 1)
            assert (tmp_path / "o" / "megatron" / name).read_bytes() == (
                tmp_path / "m" / file.path
            ).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "llmc,nanogpt", "val": "shard"}, "val='shard': nanogpt has no shards"),
        ({"format": "llmc,llmc"}, "named twice"),
        ({"format": "nanogpt,megatron", "shard_tokens": "1M"}, "one file per split"),
        ({"format": "nanogpt,megatron", "compression": "zstd"}, "files cannot be compressed"),
        ({"format": "llmc,mds", "cut": "exact"}, "none can be cut in two"),
        ({"format": "llmc,"}, "unknown format ''"),
    ],
)
def test_formats_that_do_not_go_together_are_refused(
    options: dict[str, Any], message: str, inputs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        tokenmill.prepare(inputs[0], tmp_path / "o", **options)
    assert message in error.value.message


def test_a_run_in_several_formats_is_overwritten_whole(inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "o"
    tokenmill.prepare(inputs[0], out, workers=0, format="mds,hf,llmc", val="none")
    with pytest.raises(RefusedError, match="more: mds, hf -> none"):
        tokenmill.prepare(inputs[0], out, workers=0, format="llmc", val="none")
    tokenmill.prepare(inputs[0], out, workers=0, overwrite=True)
    assert sorted(p.name for p in out.iterdir()) == [
        "index", "manifest.json", "run.json", "train.bin", "val.bin",
    ][: len(list(out.iterdir()))]  # fmt: skip
    assert not (out / "mds").exists()


def test_nothing_is_written_through_a_linked_folder(inputs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("train", "mds/val", "hf"):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).symlink_to(tmp_path / "elsewhere")
        (out / ".tokenmill").mkdir()
        with pytest.raises(RefusedError, match="a symbolic link"):
            tokenmill.prepare(inputs[0], out, workers=0, format="mds")
    assert not os.listdir(tmp_path / "elsewhere")


def test_nothing_is_removed_through_a_linked_folder(inputs: list[Path], tmp_path: Path) -> None:
    """A manifest from somebody else names a file in a folder that leads elsewhere."""
    out, elsewhere = tmp_path / "o", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "victim").write_text("mine")
    tokenmill.prepare(inputs[0], out, workers=0)
    manifest = Manifest.load(out)
    for folder, message in (
        ("evil", "does not belong"),
        ("train", "a symbolic link"),
        ("hf/val", "a symbolic link"),
    ):
        entry = msgspec.structs.replace(manifest.files[0], path=f"{folder}/victim")
        hostile = msgspec.structs.replace(manifest, files=[*manifest.files, entry]).sealed()
        (out / "manifest.json").write_bytes(hostile.encode())
        (out / folder).parent.mkdir(exist_ok=True)
        (out / folder).symlink_to(elsewhere)
        with pytest.raises(RefusedError, match=message):
            tokenmill.prepare(inputs[0], out, workers=0, overwrite=True)
        assert (elsewhere / "victim").read_text() == "mine"
        assert (out / "manifest.json").exists()
        (out / folder).unlink()


def test_the_command_tells_of_all_formats(inputs: list[Path], tmp_path: Path) -> None:
    done = command(
        "prepare", inputs[0], "-o", tmp_path / "o", "--format", "nanogpt,hf", "--val", "0.2"
    )
    assert done.returncode == 0, done.stderr
    assert "-> nanogpt, hf in" in done.stderr
    assert "load_from_disk" in done.stdout
    assert "/nanogpt/train.bin" in done.stdout
    assert "also       hf" in command("inspect", tmp_path / "o").stdout
    plan = command("plan", inputs[0], "-o", tmp_path / "p", "--format", "llmc,hf", "--val", "0.2")
    assert plan.returncode == 0, plan.stderr
    assert "llmc/p_train_000001.bin" in plan.stdout
    assert "hf/train/data-00000-of-00001.arrow" in plan.stdout


def test_verify_deep_compares_every_format_with_the_first(
    inputs: list[Path], tmp_path: Path
) -> None:
    """A token changed in one of them, and all checksums made right again."""
    out = tmp_path / "o"
    tokenmill.prepare(inputs[:1], out, workers=0, format="nanogpt,flat", val="none")
    with (out / "flat/train_tokens.bin").open("r+b") as file:
        file.seek(4 * 321)
        file.write(struct.pack("<I", 4321))
    assert not tokenmill.verify(out).ok
    seal(out)
    assert tokenmill.verify(out).ok
    problems = tokenmill.verify_deep(out, sample="1").problems
    assert [p.kind for p in problems] == ["token"]
    assert problems[0].message.startswith("flat: tokens 0 to ")


def seal(out: Path) -> None:
    """Checksums and manifest as if the files had always been so."""
    manifest = Manifest.load(out)
    table, files = b"", []
    for entry in manifest.files:
        content = (out / entry.path).read_bytes()
        if entry.kind == "pieces":
            content = table
            (out / entry.path).write_bytes(table)
        digest = struct.pack("<Q", xxhash.xxh3_64_intdigest(content))
        if entry.kind not in ("units", "pieces"):
            table += struct.pack("<Q", len(content)) + digest
        files.append(
            msgspec.structs.replace(
                entry, checksum=checksum_of_digests(digest), pieces=1, size=len(content)
            )
        )
    sealed = msgspec.structs.replace(manifest, files=files).sealed()
    (out / "manifest.json").write_bytes(sealed.encode())


def test_a_giant_document_is_read_once_however_it_is_framed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of text may be one document: each block of it must not read all of it again."""

    class Counted(InMemory):
        tokens_read = 0

        def read(self, start: int, stop: int) -> Any:
            self.tokens_read += stop - start
            return super().read(start, stop)

    monkeypatch.setattr(shards, "BLOCK_TOKENS", 100)

    monkeypatch.setattr(reframe, "BLOCK_TOKENS", 100)
    old, new = (
        plan_settings(Options(format="nanogpt", eot=eot), "o") for eot in ("append", "none")
    )
    documents = [[1, 2, 50256], [*range(10_000), 50256], [3, 50256]]
    stored = Counted(documents, old)
    stream = ReframedStream(stored, new, new.first)
    view = cuts_of(stream, CutRule.all_of(new, new.first)[0])[0]
    found = [t for part in view.bare() for t in part.tolist()]
    assert found == [1, 2, *range(10_000), 3]
    assert stored.tokens_read <= 10_006


@given(st.data())
def test_any_documents_in_any_frame_are_cut_into_the_same_documents(data: st.DataObject) -> None:
    """Ranges of tokens, shards and documents of a stream that is framed and cut anew."""
    small = {"BLOCK_DOCUMENTS": 4, "BLOCK_TOKENS": 16}
    limits = data.draw(st.sampled_from([small, {"BLOCK_TOKENS": 99}]))
    looked_through = 2 if limits is small else reframe.LOOKED_THROUGH
    with (
        mock.patch.multiple(shards, **limits),
        mock.patch.multiple(reframe, LOOKED_THROUGH=looked_through, **limits),
    ):
        cut_and_compare(data)


def cut_and_compare(data: st.DataObject) -> None:
    bos = data.draw(st.sampled_from([None, 7]))
    documents = data.draw(st.lists(st.lists(st.integers(8, 99), max_size=9), max_size=30))
    sides = data.draw(st.tuples(*[st.sampled_from(["append", "prepend", "none"])] * 2))
    if sides[0] == "none":
        sides = ("none", "none")
    cut = data.draw(st.sampled_from(["exact", "document"]))
    old, new = (
        plan_settings(
            Options(
                format="llmc", eot=eot, cut=cut, bos_token=bos,
                shard_tokens=data.draw(st.integers(1, 40)),
                val=data.draw(st.sampled_from(["none", "docs:3", "tokens:11", "shard"])),
            ),
            "out",
        )
        for eot in sides
    )  # fmt: skip
    stored, expected = (
        [[t for part in (before, ids, after) for t in part] for ids in documents]
        for before, after in (frame_of(old, old.first), frame_of(new, new.first))
    )
    stream = ReframedStream(InMemory(stored, old), new, new.first)
    flat = [t for ids in expected for t in ids]
    assert stream.tokens == len(flat)
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    assert stream.read(start, stop).tolist() == flat[start:stop]
    cuts = cuts_of(stream, CutRule.all_of(new, new.first)[0])
    assert sum(cut.tokens for cut in cuts) == len(flat)
    if not cuts:
        return
    assert sum(cut.documents for cut in cuts) == len(expected)
    assert [t for shard in cuts for part in shard.bare() for t in part.tolist()] == flat
    if cut == "document":
        found = []
        for shard in cuts:
            for tokens, lengths in shard.blocks():
                ends = np.cumsum(lengths).tolist()
                found += [
                    tokens[b - n : b].tolist() for b, n in zip(ends, lengths.tolist(), strict=True)
                ]
        assert found == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "nanogpt", "last_shard": "merge"}, "has no shards"),
        ({"format": "mds", "last_shard": "merge"}, "has no minimum"),
        ({"format": "llmc", "last_shard": "drop"}, "must be one of keep, merge, refuse"),
        ({"format": "llmc", "last_shard": "merge", "min_shard_tokens": "x"}, "not a number"),
        ({"format": "llmc", "last_shard": "merge", "shard_tokens": "9k"}, "would be too short"),
        ({"format": "llmc", "min_shard_tokens": "x"}, "not a number"),
    ],
)
def test_last_shard_rules_that_cannot_be_are_refused(
    options: dict[str, Any], message: str, inputs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        tokenmill.prepare(inputs[0], tmp_path / "o", **options)
    assert message in error.value.message


def test_a_run_warns_of_a_shard_that_its_trainer_may_refuse(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if llm.c wanted 29,999 tokens: the last shard has fewer, and is kept."""
    small = msgspec.structs.replace(FORMATS["llmc"], min_shard_tokens=29_999)
    monkeypatch.setitem(FORMATS, "llmc", small)
    result = tokenmill.prepare(inputs, tmp_path / "o", workers=0, **options_for("llmc", val="none"))
    told = [warning for warning in result.warnings if "last_shard='merge'" in warning]
    short = [f for f in result.manifest.files if f.kind == "tokens" and f.tokens < 29_999]
    assert len(told) == len(short) == 1
    assert told[0].startswith(short[0].path)
    exported = tokenmill.export(tmp_path / "o", tmp_path / "e", **options_for("llmc"))
    assert exported.warnings[:-1] == told
    assert "llm.c stops without" in exported.warnings[-1]
    again = tokenmill.prepare(
        inputs, tmp_path / "o", **options_for("llmc", val="none", min_shard_tokens=10)
    )
    assert not [warning for warning in again.warnings if "fewer than" in warning]
    alone = tokenmill.prepare(
        inputs, tmp_path / "a", workers=0, format="llmc,build-nanogpt", shard_tokens="30k",
        val="none", min_shard_tokens="30k",
    )  # fmt: skip
    told = [warning for warning in alone.warnings if "fewer than the 30,000 of min_" in warning]
    assert len(told) == 2, "what the user asked for holds for every format"
