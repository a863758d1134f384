"""`--encoder-check`: which documents the reference encodes again, and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checking import (
    MARKER,
    PLAIN,
    encoder,  # noqa: F401
    make_wrong,
    many,
)
from support.commands import command
from support.inputs import write_parquet

import tokenmill
from tokenmill.cli.summary import check_line
from tokenmill.errors import TokenmillError


def test_all_finds_a_wrong_id_in_any_document_and_none_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = many(tmp_path, f"an ordinary document with {MARKER}", count=3000)
    make_wrong(monkeypatch)
    for workers in (0, 2):
        with pytest.raises(TokenmillError, match=f"differ on a document .*{MARKER}"):
            tokenmill.prepare(
                path, tmp_path / f"o{workers}", workers=workers, start_method="fork",
                encoder_check="all",
            )  # fmt: skip
    result = tokenmill.prepare(path, tmp_path / "unchecked", workers=0, encoder_check="none")
    assert result.run["encoder"]["checked_documents"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_all_checks_every_document(tmp_path: Path, inputs: list[Path], workers: int) -> None:
    result = tokenmill.prepare(inputs, tmp_path / "o", workers=workers, encoder_check="all")
    stats, counts = result.run["encoder"], result.manifest.counts
    assert stats["checked_documents"] + stats["reference_documents"] == counts["rows"]
    assert stats["checked_bytes"] > 0.9 * counts["text_bytes"]
    alone = stats["reference_documents"]
    assert check_line(result) == (
        f"all {counts['rows'] - alone:,} documents encoded again by the reference, all equal "
        f"({alone} more were encoded by the reference alone)"
    )


def test_the_summary_says_how_many_of_which_kind(tmp_path: Path) -> None:
    documents = ["a  1", "e\u0301", "b\n", "c ", "Я", PLAIN, PLAIN]
    path = write_parquet(tmp_path / "a.parquet", documents)
    done = command("prepare", path, "-o", tmp_path / "o", "--workers", "0")
    assert (
        "check: 7 documents encoded again by the reference, all equal (2 begin or end in white "
        "space, 1 with combining marks, 1 with digits or signs after spaces, 1 of a new script, "
        "2 others)" in done.stdout
    )
    done = command("prepare", path, "-o", tmp_path / "j", "--workers", "1", "--json")
    run = json.loads(done.stdout)["run"]
    assert run["encoder_check"] == "sample"
    assert run["encoder"]["checked_white_space"] == run["encoder"]["checked_other"] == 2
    assert json.loads((tmp_path / "j" / "run.json").read_text())["encoder"] == run["encoder"]


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ([], "sample"),
        (["--encoder-check"], "sample"),
        (["--encoder-check", "sample"], "sample"),
        (["--encoder-check", "all"], "all"),
        (["--encoder-check=none"], "none"),
        (["--no-encoder-check"], "none"),
        (["--no-encoder-check", "--encoder-check", "none"], "none"),
    ],
)
def test_old_and_new_flags_say_which_check(tmp_path: Path, words: list[str], check: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", [PLAIN])
    done = command("prepare", path, "-o", tmp_path / "o", "--workers", "0", "--json", *words)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    assert run["encoder_check"] == check
    assert run["encoder"]["checked_documents"] == (check != "none")


@pytest.mark.parametrize(
    "words",
    [["--encoder-check", "most"], ["--encoder-check", "all", "--no-encoder-check"]],
)
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, words: list[str]) -> None:
    path = write_parquet(tmp_path / "a.parquet", [PLAIN])
    done = command("prepare", path, "-o", tmp_path / "o", *words)
    assert done.returncode == 2
    assert "--encoder-check" in done.stderr
    assert not (tmp_path / "o").exists()
