"""Folders as they come: what is about the data is skipped, all problems are one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.commands import command
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill.errors import InputError
from tokenmill.inputs.find import find_sources
from tokenmill.tokenizer.encoders.exact import ExactEncoder


def test_files_about_the_data_are_skipped_and_listed(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["text"])
    about = ["README.md", "LICENSE", "card.md", "readme.rst", "CITATION.cff", "SHA256SUMS"]
    for name in (*about, ".gitattributes"):
        (tmp_path / name).write_text("about")
    found = find_sources([tmp_path], "text")
    assert [source.name for source in found.sources] == ["a.jsonl"]
    skipped = {Path(one.path).name: one.reason for one in found.skipped}
    assert skipped.pop(".gitattributes") == "hidden"
    assert skipped.keys() == set(about)
    assert {source.name for source in find_sources([tmp_path / "*"], "text").sources} == {"a.jsonl"}
    assert [s.name for s in find_sources([tmp_path / "*.md"], "text").sources] == [
        "README.md", "card.md",
    ]  # fmt: skip
    assert "README.md" in command("plan", tmp_path, "-o", tmp_path / "o", "--no-probe").stdout


def test_a_folder_without_data_says_how_to_read_it(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    with pytest.raises(InputError, match="no data in this directory") as refused:
        find_sources([tmp_path], "text")
    assert "--as text" in refused.value.hint
    (tmp_path / "b.py").write_text("text")
    with pytest.raises(InputError, match=r"b\.py: unknown extension"):
        find_sources([tmp_path], "text")


def test_all_problems_of_a_folder_are_one_message(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "good.jsonl", ["text"])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut short")
    (tmp_path / "other.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError) as refused:
        find_sources([tmp_path], "text")
    assert refused.value.message.startswith("3 inputs cannot be read:")
    for name in ("cut.parquet", "other.jsonl", "empty.jsonl"):
        assert name in refused.value.message
    for name in ("a.exe", "b.dll"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError) as refused:
        find_sources([tmp_path], "text")
    assert refused.value.message.startswith("2 inputs cannot be read:")


def test_files_with_the_same_content_are_mentioned(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", ["text"] * (2 + i // 2)) for i in range(3)]
    result = tokenmill.prepare(paths, tmp_path / "o", workers=0, val="none")
    assert [line for line in result.warnings if "0.jsonl and 1.jsonl" in line]
    assert "0.jsonl and 1.jsonl" in command("plan", *paths, "-o", tmp_path / "p").stdout
    result = tokenmill.prepare(paths[1:], tmp_path / "q", workers=0, val="none")
    assert not [line for line in result.warnings if "same content" in line]


@pytest.mark.parametrize("limit", [{"limit_docs": 1}, {"limit_docs": 30}, {"limit_tokens": 40}])
@pytest.mark.parametrize("drop", [{}, {"min_tokens": 5}])
def test_a_trial_encodes_only_what_it_needs(
    limit: dict[str, Any], drop: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"document {i} " * (i % 5 + 1) for i in range(2000)]
    path = write_parquet(tmp_path / "x.parquet", texts, rows=500)
    encoded = 0
    encode = ExactEncoder.encode

    def counted(self: ExactEncoder, texts: Any, *args: Any, **kw: Any) -> Any:
        nonlocal encoded
        encoded += texts.documents
        return encode(self, texts, *args, **kw)

    monkeypatch.setattr(ExactEncoder, "encode", counted)
    options = {"workers": 0, "val": "none", "encoder_check": "none", **limit, **drop}
    result = tokenmill.prepare(path, tmp_path / "o", **options)
    documents = result.manifest.counts["documents"]
    assert documents == limit.get("limit_docs", documents)
    assert encoded <= 4 * max(10, result.manifest.counts["rows"])
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").ok


def test_prepare_says_where_the_disk_will_be_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmill.engines.observer import Observer
    from tokenmill.planning import needs

    notes: list[str] = []
    monkeypatch.setattr(Observer, "note", lambda self, text: notes.append(text))
    path = write_jsonl(tmp_path / "x.jsonl", ["text"] * 1000)
    tokenmill.prepare(path, tmp_path / "o", workers=0, val="none", observer=Observer())
    assert not [note for note in notes if "may not fit" in note]
    monkeypatch.setattr(needs, "free_bytes", lambda _: 10)
    tokenmill.prepare(path, tmp_path / "p", workers=0, val="none", observer=Observer())
    assert [note for note in notes if "may not fit" in note]
