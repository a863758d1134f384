"""mix.toml is read strictly, and numbers stay exact."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from tokenmill.errors import UsageError
from tokenmill.planning.mixture.mix_file import Mixture, billions, read_mixture

WHOLE = """
tokens = "100B"
unit = "tokens"
[source.web]
inputs = ["hf://datasets/ORG/web/*.parquet"]
weight = 0.6
[source.code]
inputs = ["code/*.parquet"]
text_column = "content"
weight = 0.3
max_epochs = 2.5
[source.math]
inputs = ["math.txt"]
tokens = "5B"
as = "jsonl"
[source.wiki]
inputs = "wiki/*.jsonl.zst"
weight = "rest"
"""


def read(tmp_path: Path, text: str) -> Mixture:
    (tmp_path / "mix.toml").write_text(text)
    return read_mixture(tmp_path / "mix.toml")


def test_every_key_is_read_and_paths_begin_at_the_file(tmp_path: Path) -> None:
    mixture = read(tmp_path, WHOLE)
    web, code, math, wiki = mixture.sources
    assert (mixture.total, mixture.unit) == (100 * 10**9, "tokens")
    assert web.inputs == ("hf://datasets/ORG/web/*.parquet",)
    assert (web.weight, web.max_epochs) == (Fraction(6, 10), 1)
    assert code.inputs == (f"{tmp_path}/code/*.parquet",)
    assert (code.text_column, code.max_epochs) == ("content", Fraction(5, 2))
    assert (math.amount, math.weight, math.as_kind) == (5 * 10**9, 0, "jsonl")
    assert (wiki.rest, wiki.inputs) == (True, (f"{tmp_path}/wiki/*.jsonl.zst",))


def test_a_pattern_is_not_made_of_the_name_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]"
    folder.mkdir()
    mixture = read(folder, '[source.a]\ninputs = ["*.txt", "b.txt"]\nweight = 1\n')
    assert mixture.sources[0].inputs == (f"{tmp_path}/a[[]1]/*.txt", f"{folder}/b.txt")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("wieght = 2", "source a: wieght: no such key", "did you mean 'weight'?"),
        ("ratio = 2", "source a: ratio: no such key", "did you mean 'weight'?"),
        ("weight = 0", "source a: weight = 0: must be above 0", "leave the source out"),
        ("weight = -1.5", "source a: weight = -1.5: must be above 0", ""),
        ("weight = nan", "source a: weight: must be a number", ""),
        ("weight = inf", "source a: weight: must be a number", ""),
        ("weight = true", "source a: weight: must be a number", ""),
        (f"weight = 1{'0' * 20}", f"source a: weight = 1{'0' * 20}: is too large or too small", ""),
        ("weight = 1e400", "source a: weight = 1E+400: is too large or too small", ""),
        ("weight = 'most'", "source a: weight 'most': must be a number or 'rest'", ""),
        ("weight = 'Rest'", "source a: weight 'Rest'", "did you mean 'rest'?"),
        ("weight = 1\ntokens = 3", "source a: has a weight and a budget", "one of"),
        ("", "source a: has neither a weight nor a budget", "one of"),
        ("tokens = 0", "source a: tokens: must be at least 1", "leave it out"),
        ("tokens = 1.5", "source a: tokens: must be a whole number or text", ""),
        ("tokens = 'many'", "source a: tokens: 'many' is not a number", ""),
        ("documents = 3", "documents: the unit of this mixture is tokens", "unit = 'documents'"),
        ("weight = 1\nmax_epochs = 0", "source a: max_epochs = 0: must be above 0", ""),
        ("weight = 1\nmax_epochs = '2'", "source a: max_epochs: must be a number", ""),
        ("weight = 1\ntext_column = ''", "source a: text_column: must be text", ""),
        ("weight = 1\nas = 3", "source a: as: must be text", ""),
    ],
)
def test_a_source_that_cannot_be_is_refused(
    tmp_path: Path, line: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, f"[source.a]\ninputs = ['x']\n{line}\n")
    assert f"mix.toml: {message}" in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("[]", "source a: inputs: is empty"),
        ("['']", "source a: inputs: is empty"),
        ("3", "source a: inputs: must be a list"),
        ("['x', 3]", "source a: inputs: must be a list"),
        ("['x', 'x']", "source a: inputs: x is named twice"),
        ("['-']", "source a: inputs: standard input cannot"),
        ("['dataset:']", "source a: inputs: dataset:: names no folder"),
    ],
)
def test_inputs_that_cannot_be_are_refused(tmp_path: Path, inputs: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"mix.toml: {message}"):
        read(tmp_path, f"[source.a]\ninputs = {inputs}\nweight = 1\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no source is described"),
        ("source = 3", "no source is described"),
        ("[source]\na = 3", "source a: must be a table"),
        ("[sources.a]\nweight = 1", "sources: no such key"),
        (
            "unit = 'docs'\n[source.a]\nweight = 1",
            "unit: must be 'tokens' or 'documents', not 'docs'",
        ),
        (
            "unit = 'documents'\ntokens = 3\n[source.a]\nweight = 1",
            "tokens: the unit of this mixture is doc",
        ),
        ("[source.a]\n[source.a]", "is not TOML"),
        ("a = ", "is not TOML"),
        ("tokens = 'x'\n[source.a]\nweight = 1", "tokens: 'x' is not a number"),
    ],
)
def test_a_file_that_is_no_mixture_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_mixture(tmp_path / "none.toml")
    (tmp_path / "mix.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        read_mixture(tmp_path / "mix.toml")


def test_the_rest_needs_something_that_is_left(tmp_path: Path) -> None:
    sources = "[source.{}]\ninputs = ['{}']\nweight = {}\n"
    both = sources.format("a", "x", 6) + sources.format("b", "y", "'rest'")
    with pytest.raises(UsageError, match="sum to 6, which leaves nothing") as error:
        read(tmp_path, both)
    assert "0.6 is 60 %" in error.value.hint
    two = sources.format("a", "x", "'rest'") + sources.format("b", "y", "'rest'")
    with pytest.raises(UsageError, match="sources a and b: only one"):
        read(tmp_path, two)


def test_documents_can_be_the_unit(tmp_path: Path) -> None:
    text = "unit = 'documents'\ndocuments = '2k'\n[source.a]\ninputs = ['x']\ndocuments = '2k'\n"
    mixture = read(tmp_path, text)
    assert (mixture.unit, mixture.total, mixture.sources[0].amount) == ("documents", 2000, 2000)


@pytest.mark.parametrize(
    ("text", "same"), [("100B", "100G"), ("1.5b", "1.5G"), ("2GB", "2GB"), ("7", "7"), ("", "")]
)
def test_of_tokens_a_b_is_a_billion(text: str, same: str) -> None:
    assert billions(text) == same
