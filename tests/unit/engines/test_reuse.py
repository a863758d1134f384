"""`--reuse OLD`: documents are taken from an old dataset, and the result is that of a fresh run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import quick
from support.inputs import sample_texts, write_arrow, write_jsonl, write_parquet

import tokenmill
from tokenmill.engines.observer import Observer
from tokenmill.engines.reuse.old_documents import OldStream
from tokenmill.errors import RefusedError, UsageError, VerificationError
from tokenmill.inputs import segments
from tokenmill.inputs.readers import fragments, text
from tokenmill.output.manifest import Manifest
from tokenmill.output.stored import StreamFiles, TokenFile
from tokenmill.system.store import FolderStore

TEXTS = sample_texts()[:150]
Files = dict[str, bytes]


def files_of(folder: Path) -> Files:
    """All of a dataset, but what is about the run."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if name != "run.json"}


def prepare(inputs: Sequence[Path], output: Path, **options: Any) -> tokenmill.Result:
    options = {"workers": 0, "observer": Observer(), "val": 0.1, **options}
    return tokenmill.prepare(list(map(str, inputs)), output, **options)


class Grown:
    """An old dataset, and a new one made with it and without it."""

    def __init__(self, tmp_path: Path) -> None:
        self.old, self.fresh, self.new = (tmp_path / n / "out" for n in ("old", "fresh", "new"))

    def make_old(self, inputs: Sequence[Path], **options: Any) -> None:
        prepare(inputs, self.old, **options)

    def check(self, inputs: Sequence[Path], **options: Any) -> dict[str, Any]:
        """A run with the old dataset gives what a run without it gives; what it reused."""
        before = files_of(self.old)
        prepare(inputs, self.fresh, **options)
        result = prepare(inputs, self.new, reuse=self.old, **options)
        fresh, new = files_of(self.fresh), files_of(self.new)
        assert fresh.keys() == new.keys()
        assert [name for name in fresh if fresh[name] != new[name]] == []
        assert files_of(self.old) == before
        told = json.loads((self.new / "run.json").read_bytes())
        assert told["reused"] == result.run["reused"]
        reused: dict[str, Any] = result.run["reused"]
        return reused


@pytest.fixture
def grown(tmp_path: Path) -> Grown:
    return Grown(tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments, and documents in pieces, of few bytes."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 9_000)
    monkeypatch.setattr(text, "TEXT_WINDOW", 1_000)
    for module in (fragments, text):
        monkeypatch.setattr(module, "BATCH_BYTES", 2_000)
        monkeypatch.setattr(module, "LONG_BYTES", 4_000)


def test_files_are_added_removed_changed_and_renamed(tmp_path: Path, grown: Grown) -> None:
    one = write_jsonl(tmp_path / "one.jsonl", TEXTS[:50])
    two = write_jsonl(tmp_path / "two.jsonl.gz", TEXTS[50:80])
    gone = write_parquet(tmp_path / "gone.parquet", TEXTS[80:90])
    table = write_parquet(tmp_path / "table.parquet", TEXTS[90:120])
    grown.make_old([gone, one, two, table])
    write_jsonl(one, [*TEXTS[:49], "another end"])
    moved = table.rename(tmp_path / "a-moved.parquet")
    added = write_arrow(tmp_path / "added.arrow", TEXTS[120:140])
    reused = grown.check([moved, added, one, two])
    assert reused["documents"] == 30 + 30
    assert reused["encoded"] == 50 + 20


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a dataset with default settings, and of its inputs."""
    folder = tmp_path_factory.mktemp("plain")
    inputs = [write_jsonl(folder / "one.jsonl", TEXTS[:60])]
    inputs.append(write_parquet(folder / "two.parquet", TEXTS[60:90]))
    prepare(inputs, folder / "out")
    return folder


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"val": "docs:7", "seed": 5, "eot": "prepend"},
            {"val": "none", "format": "llmc", "shard_tokens": 5000, "cut": "document"},
            {"val": 0.3, "format": "megatron", "bos_token": 50256},
            {"val": "shard", "format": "llmc", "shard_tokens": 3000},
            {"val": "tail:0.3", "format": "mds,parquet", "shard_tokens": 4000},
            {"format": "hf", "eot": "none", "dtype": "uint32"},
            {"format": "litdata", "shard_tokens": 4000},
            {"format": "olmo", "drop_empty": True},
            {"limit_docs": 31},
            {"limit_tokens": 9000},
            {"min_tokens": 20, "max_tokens": 400},
        ],
        first=2,
    ),
    ids=str,
)
def test_settings_that_are_not_about_the_text_may_differ(
    tmp_path: Path, plain: Path, options: dict[str, Any]
) -> None:
    """Both ways: another dataset made of a plain one, and a plain one made of another."""
    inputs = [plain / "one.jsonl", plain / "two.parquet"]
    other, copy, back = (tmp_path / name / "out" for name in ("other", "copy", "back"))
    prepare(inputs, other, **options)
    reused = prepare(inputs, copy, reuse=plain / "out", **options).run["reused"]
    assert files_of(copy) == files_of(other)
    assert reused["encoded"] == 0
    assert reused["documents"] > 0
    read = Manifest.load(other).counts["documents"]
    reused = prepare(inputs, back, reuse=other).run["reused"]
    assert files_of(back) == files_of(plain / "out")
    assert (reused["documents"], reused["encoded"]) == (read, 90 - read)


def test_what_export_made_serves(tmp_path: Path, grown: Grown) -> None:
    inputs = [write_jsonl(tmp_path / "one.jsonl", TEXTS[:60])]
    prepare(inputs, tmp_path / "first")
    tokenmill.export(tmp_path / "first", grown.old, format="megatron", workers=0)
    assert grown.check(inputs)["encoded"] == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", quick(["a.jsonl.zst", "a.parquet", "a.jsonl", "a.txt"], first=2))
def test_many_segments_with_giants_in_pieces(tmp_path: Path, grown: Grown, name: str) -> None:
    giant = " ".join(f"word number {i}" for i in range(3000))
    texts = [*TEXTS[:70], giant, *TEXTS[70:], giant[:30_000]]
    path, options = tmp_path / name, {}
    if name.endswith(".txt"):
        path.write_text("\n--\n".join(text for text in texts if "\r" not in text))
        options = {"text_separator": "\\n--\\n"}
    elif name.endswith(".parquet"):
        write_parquet(path, texts, rows=7)
    else:
        write_jsonl(path, texts)
    grown.make_old([path], **options)
    reused = grown.check([path], val=0.3, seed=1, **options)
    assert reused["encoded"] >= 2  # the giants
    assert reused["documents"] > 100
    assert Manifest.load(grown.new).counts["documents"] == sum(
        reused[key] for key in ("documents", "encoded")
    )


@pytest.mark.usefixtures("small")
def test_text_files_that_are_cut_elsewhere_are_encoded(tmp_path: Path, grown: Grown) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n--\n".join(TEXTS[:80]))
    table = write_parquet(tmp_path / "b.parquet", TEXTS[80:90])
    grown.make_old([path, table], text_separator="\\n--\\n")
    reused = grown.check([path, table], text_separator="\\n--\\n", min_tokens=3)
    assert reused["documents"] == 10


def test_quarantined_and_filtered_rows(
    tmp_path: Path, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 9_000)
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3:3] = [b"no json\n", b'{"id": 50, "text": 5}\n']
    lines[90:90] = [b'{"id": 50, "text": "\xff"}\n']
    path.write_bytes(b"".join(lines))
    options = {"on_bad_row": "quarantine"}
    grown.make_old([path], where="id > 20", **options)
    reused = grown.check([path], where="id > 10", val=0.2, **options)
    assert reused["encoded"] == 10
    assert Manifest.load(grown.new).counts["quarantined"] == 3


def test_the_plan_and_the_manifest_do_not_know_of_it(tmp_path: Path, grown: Grown) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    grown.make_old([path])
    grown.check([path])
    assert b"reuse" not in (grown.new / "manifest.json").read_bytes()


def test_a_finished_dataset_needs_no_old_one(tmp_path: Path, grown: Grown) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    prepare([path], grown.new)
    assert prepare([path], grown.new, reuse=tmp_path / "nowhere").already_done


@pytest.mark.parametrize("shuffled", [False, True])
def test_documents_are_found_by_row_in_any_order(
    tmp_path: Path, grown: Grown, shuffled: bool
) -> None:
    """A shuffled stream has a run for each document, and a table of documents in order of rows."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two two", "", "four four four four", "five"])
    grown.make_old([path], val="none")
    manifest = Manifest.load(grown.old)
    settings, tokens = manifest.settings, np.fromfile(grown.old / "train.bin", "<u2")
    ends = np.fromfile(grown.old / "index/train.ends", "<u8")
    order = [3, 0, 4, 2, 1] if shuffled else [0, 1, 2, 3, 4]
    documents = np.split(tokens, ends[:-1].astype(int))
    np.concatenate([documents[i] for i in order]).tofile(tmp_path / "t")
    np.cumsum([len(documents[i]) for i in order]).astype("<u8").tofile(tmp_path / "e")
    np.array([[n, 2, 7 + i] for n, i in enumerate(order)], "<u8").tofile(tmp_path / "r")
    np.argsort(order).astype("<u8").tofile(tmp_path / "by-row")
    about = StreamFiles(
        "all", settings, settings.first, len(tokens), 5,
        (TokenFile("t", 0, len(tokens)),), "e", "r", ("x", "y", "z"),
    )  # fmt: skip
    stream = OldStream(FolderStore(tmp_path), about, "by-row" if shuffled else "")
    found = stream.find(2, np.array([5, 7, 8, 9, 11, 30]))
    assert found.documents.tolist() == [1, 2, 3, 4]
    assert found.ids.tolist() == np.concatenate([documents[i][:-1] for i in (0, 1, 2, 4)]).tolist()
    assert found.lengths.tolist() == [len(documents[i]) - 1 for i in (0, 1, 2, 4)]
    assert not len(stream.find(1, np.array([7, 8])).documents)


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3, "limit_docs": 70}], ids=str)
def test_a_shuffled_dataset_and_a_plain_one(
    tmp_path: Path, plain: Path, options: dict[str, Any]
) -> None:
    inputs = [
        plain / "two.parquet",
        write_jsonl(tmp_path / "c.jsonl", TEXTS[90:]),
        plain / "one.jsonl",
    ]
    shuffled, fresh = tmp_path / "shuffled", tmp_path / "fresh" / "out"
    prepare([inputs[0], inputs[2]], shuffled, shuffle=True, format="llmc")
    prepare(inputs, fresh, **options)
    for old in (shuffled, plain / "out"):
        new = tmp_path / old.name / "new" / "out"
        reused = prepare(inputs, new, reuse=old, **options).run["reused"]
        assert files_of(new) == files_of(fresh)
        assert reused["documents"] == 90


# --- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"tokenizer": "cl100k_base"}, {}, "tokenizer: cl100k_base -> gpt2"),
        ({"text": "{text}!"}, {}, "text: '{text}!' -> ''"),
        ({}, {"text_column": "z"}, "a.parquet: text column: text -> z"),
    ],
    ids=str,
)
def test_other_settings_are_named(
    tmp_path: Path, grown: Grown, then: dict[str, Any], now: dict[str, Any], told: str
) -> None:
    path = tmp_path / "a.parquet"
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS[:20], "z": TEXTS[:20]}), path)
    grown.make_old([path], **then)
    with pytest.raises(RefusedError, match="nothing of it can be reused") as error:
        prepare([path], grown.new, reuse=grown.old, **now)
    assert told in error.value.message
    assert "leave reuse out" in error.value.hint
    assert not grown.new.exists()


def test_no_source_in_common(tmp_path: Path, grown: Grown) -> None:
    grown.make_old([write_jsonl(tmp_path / "a.jsonl", TEXTS[:20])])
    write_jsonl(tmp_path / "a.jsonl", TEXTS[1:21])
    other = write_jsonl(tmp_path / "b.jsonl", TEXTS[20:40])
    with pytest.raises(RefusedError, match="no source is the same") as error:
        prepare([tmp_path / "a.jsonl", other], grown.new, reuse=grown.old)
    assert error.value.message.splitlines()[1:] == [
        "  a.jsonl: changed since",
        "  b.jsonl: not in the old dataset",
    ]


def test_a_large_file_must_have_the_same_time(
    tmp_path: Path, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.inputs.opening.identify.FINGERPRINT_BYTES", 1000)
    monkeypatch.setattr("tokenmill.inputs.opening.identify.FINGERPRINT_BLOCK", 100)
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    grown.make_old([path])
    assert grown.check([path])["documents"] == 40
    path.touch()
    with pytest.raises(RefusedError) as error:
        prepare([path], tmp_path / "other", reuse=grown.old)
    assert "modified since" in error.value.message


def test_an_unfinished_dataset_and_the_output_itself(tmp_path: Path, grown: Grown) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    grown.make_old([path])
    with pytest.raises(UsageError, match="is the output itself"):
        prepare([path], grown.old, reuse=grown.old, overwrite=True)
    (grown.old / "manifest.json").rename(tmp_path / "manifest.json")
    with pytest.raises(UsageError, match="not a finished dataset"):
        prepare([path], grown.new, reuse=grown.old)
    with pytest.raises(UsageError, match="no such folder"):
        prepare([path], grown.new, reuse=tmp_path / "nowhere")
    assert not grown.new.exists()


def test_an_imported_dataset_has_no_text_to_compare(tmp_path: Path, grown: Grown) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    prepare([path], tmp_path / "plain")
    grown.old.mkdir(parents=True)
    for file in (tmp_path / "plain").glob("*.bin"):
        (grown.old / file.name).write_bytes(file.read_bytes())
    tokenmill.adopt(grown.old, format="nanogpt", tokenizer="gpt2")
    with pytest.raises(RefusedError, match="imported from token files"):
        prepare([path], grown.new, reuse=grown.old)


@pytest.mark.parametrize(
    "name", ["train.bin", "index/train.ends", "index/train.runs", "index/units", "index/pieces"]
)
def test_a_damaged_old_dataset_is_noticed(tmp_path: Path, plain: Path, name: str) -> None:
    """And the job goes on without it."""
    old, new = tmp_path / "old", tmp_path / "out"
    shutil.copytree(plain / "out", old)
    content = bytearray((old / name).read_bytes())
    content[len(content) // 2] ^= 1
    (old / name).write_bytes(content)
    inputs = [plain / "one.jsonl", plain / "two.parquet"]
    with pytest.raises(VerificationError, match=r"changed") as error:
        prepare(inputs, new, reuse=old)
    assert "without reuse" in error.value.hint
    if name == "train.bin":
        prepare(inputs, new)
        assert files_of(new) == files_of(plain / "out")


def test_a_short_file_is_noticed_before_the_work(tmp_path: Path, grown: Grown) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:40])
    grown.make_old([path])
    with (grown.old / "train.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(VerificationError, match="truncated"):
        prepare([path], grown.new, reuse=grown.old)
    assert not grown.new.exists()


def test_ids_of_another_text_are_noticed_by_the_sample(
    tmp_path: Path, grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source whose change its fingerprint does not show."""
    monkeypatch.setattr("tokenmill.inputs.opening.identify._fingerprint", lambda *_: "xxh3:same")
    path = write_jsonl(tmp_path / "a.jsonl", ["first text", "second text"])
    grown.make_old([path], val="none")
    write_jsonl(path, ["other text", "second text"])
    with pytest.raises(VerificationError, match="are not those of this text"):
        prepare([path], grown.new, reuse=grown.old, val="none", encoder_check="all")
