"""What is wrong with the inputs is said before any work begins."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill.errors import InputError
from tokenmill.inputs.find import find_sources

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


def names(*inputs: object) -> list[str]:
    return [source.name for source in find_sources([str(i) for i in inputs], "text").sources]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a/z.jsonl", "a/B.jsonl", "a/é.jsonl", "a-b.jsonl", "a/b/c.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, ["x"])
    for name in (".hidden.jsonl", "_success", "a/_tmp.jsonl", "_d/x.jsonl", ".git/y.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not looked at")
    return tmp_path


def test_a_directory_is_read_recursively_by_the_bytes_of_its_paths(tree: Path) -> None:
    found = names(tree)
    assert found == sorted(found, key=os.fsencode)
    assert found == ["a-b.jsonl", "a/B.jsonl", "a/b/c.jsonl", "a/z.jsonl", "a/é.jsonl", "b.jsonl"]


def test_arguments_keep_their_order_and_globs_are_sorted(tree: Path) -> None:
    assert names(tree / "b.jsonl", tree / "a" / "*.jsonl") == [
        "b.jsonl", "a/B.jsonl", "a/z.jsonl", "a/é.jsonl",
    ]  # fmt: skip
    assert names(tree / "**" / "*.jsonl")[:2] == ["a-b.jsonl", "a/B.jsonl"]


def test_hidden_files_and_underscores_are_skipped_and_listed(tree: Path) -> None:
    skipped = find_sources([str(tree)], "text").skipped
    assert sorted((os.path.relpath(s.path, tree), s.reason) for s in skipped) == [
        (".git", "hidden"),
        (".hidden.jsonl", "hidden"),
        ("_d", "starts with an underscore"),
        ("_success", "starts with an underscore"),
        ("a/_tmp.jsonl", "starts with an underscore"),
    ]


def test_a_file_named_twice_is_refused_also_through_a_link(tree: Path) -> None:
    with pytest.raises(InputError, match="named twice"):
        names(tree / "b.jsonl", tree / "b.jsonl")
    (tree / "link.jsonl").symlink_to(tree / "b.jsonl")
    with pytest.raises(InputError, match="named twice"):
        names(tree)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", LFS, "git-LFS pointer"),
        ("x.jsonl", LFS, "git-LFS pointer"),
        ("x.parquet", b"", "empty"),
        ("x.jsonl.gz", b"", "empty"),
        ("x.parquet", b"PAR1 cut in the middle", "cut short"),
        ("x.parquet", b"something else entirely", "PAR1 missing at the start"),
        ("x.parquet", b"PAR1" + b"\0" * 20 + b"\x05\0\0\0PAR1", "footer cannot be read"),
        ("x.jsonl.gz", b'{"text": "not gzip"}', "does not begin like a .gz"),
        ("x.jsonl.zst", b'{"text": "not zstd"}', "does not begin like a .zst"),
        ("x.jsonl", b"\x1f\x8b\x08rest", "looks like gz"),
        ("x.jsonl", b"PAR1rest", "looks like parquet"),
        ("x.json", b'[{"other": "a"}]', "no field 'text'"),
        ("x.jsonl", b'{"content": "a", "id": 1}\n', "no field 'text'"),
        ("x.docx", b"text\na\n", "unknown extension .docx"),
        ("noext", b"text", "unknown extension"),
        ("x.parquet.gz", b"\x1f\x8b", "unknown extension"),
        ("x.arrow.gz", b"\x1f\x8b", "unknown extension"),
        ("x.arrow", LFS, "git-LFS pointer"),
        ("x.arrow", b"", "empty"),
        ("x.arrow", b"something else entirely", "not an Arrow stream or file"),
        ("x.arrow", b"ARROW1\0\0 and no end", "ARROW1 is missing at its end"),
        ("x.arrow", b"\xff\xff\xff\xff\0\0\0\0", "no schema"),
        ("x.arrow", b"\0" * 64, "not an Arrow stream or file"),
        ("x.feather", b"FEA1 of long ago", "Feather version 1"),
        ("x.jsonl", b"ARROW1\0\0", "looks like arrow"),
    ],
)
def test_what_is_not_what_it_claims_to_be_is_an_error(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        names(tmp_path / name)
    assert message in error.value.message
    assert name in error.value.message


def test_a_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["a"])
    with pytest.raises(InputError, match="no column 'body'") as error:
        find_sources([path], "body")
    assert "id, text" in error.value.hint
    write_jsonl(tmp_path / "y.jsonl", ["a"], field="content")
    with pytest.raises(InputError, match="no field 'text'") as error:
        find_sources([tmp_path / "y.jsonl"], "text")
    assert "id, content, z" in error.value.hint


def test_a_column_that_is_not_text_is_named_with_its_type(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is int64, not text"):
        names(tmp_path / "x.parquet")


def test_the_output_folder_inside_an_input_folder_is_no_input(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["a", "b"])
    first = tokenmill.prepare(tmp_path, tmp_path / "out", workers=0)
    again = tokenmill.prepare(tmp_path, tmp_path / "out", workers=0)
    assert again.already_done
    assert again.manifest == first.manifest
    with pytest.raises(InputError, match="only inputs are in the output"):
        tokenmill.prepare(tmp_path / "out" / "*.json", tmp_path / "out", workers=0)


def test_a_dataset_of_ours_in_an_input_folder_is_passed_over_and_alone_refused(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_jsonl(data / "a.jsonl", ["text"])
    tokenmill.prepare(data, data / "one", workers=0, format="parquet", val="none")
    for number, inputs in enumerate((data, f"{data}/*")):
        result = tokenmill.prepare(inputs, data / f"again{number}", workers=0, val="none")
        assert [source["name"] for source in result.manifest.sources] == ["a.jsonl"]
    found = find_sources([data], "text")
    assert (str(data / "one"), "a dataset of tokenmill") in {
        (s.path, s.reason) for s in found.skipped
    }
    with pytest.raises(InputError, match="tokens, not text"):
        tokenmill.prepare(data / "one", tmp_path / "o", workers=0)


def test_what_is_no_regular_file_is_refused_and_links_to_folders_are_listed(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match="not a regular file"):
        names(tmp_path / "pipe.jsonl")
    folder = tmp_path / "d"
    folder.mkdir()
    write_jsonl(folder / "x.jsonl", ["a"])
    (folder / "link").symlink_to(tmp_path)
    found = find_sources([folder], "text")
    assert [s.name for s in found.sources] == ["x.jsonl"]
    assert [s.reason for s in found.skipped] == ["a link to a folder"]


def test_an_empty_glob_a_missing_file_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file matches"):
        names(tmp_path / "*.parquet")
    with pytest.raises(InputError, match="no such file"):
        names(tmp_path / "gone.parquet")
    with pytest.raises(InputError, match="no input files"):
        names(tmp_path)


def test_the_fingerprint_follows_the_content_not_the_time(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["a", "b"])
    before = find_sources([path], "text").sources[0]
    os.utime(path, (1, 1))
    assert find_sources([path], "text").sources[0].fingerprint == before.fingerprint
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"c"'))
    assert find_sources([path], "text").sources[0].fingerprint != before.fingerprint
