"""Mixtures of other tools become a mix.toml that says the same."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tokenmill.cli.main import cli
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.planning.mixture.foreign import braces, mix_toml, read_foreign
from tokenmill.planning.mixture.mix_file import read_mixture

OLMO = """
requested_tokens: 1_000_000
source_list:
  sources:
    - source_name: web
      target_ratio: 0.75
      paths:
        - data/web/*.jsonl.gz
    - source_name: code
      target_ratio: 0.25
      max_repetition_ratio: 2.5
      max_source_fraction: 0.8
      paths: [s3://bucket/code/part-0.npy, s3://bucket/code/part-1.npy]
"""
LEVANTER = """
data:
  tokenizer: gpt2
  configs:
    c4:
      train_urls:
        - gs://data/c4-train.{00008..00010}.jsonl
      validation_urls: [gs://data/val.jsonl]
    wiki: {id: ORG/wiki, text_key: body}
    paloma:
      validation_urls: [gs://data/p.jsonl]
      train_urls: [gs://data/none.jsonl]
  train_weights:
    c4: 3
    wiki: 1e-1
    paloma: 0
trainer:
  num_train_steps: 100
"""


def made(tmp_path: Path, name: str, content: str) -> dict[str, Any]:
    (tmp_path / name).write_text(content)
    text = mix_toml(read_foreign([str(tmp_path / name)]))
    return tomllib.loads(text, parse_float=Decimal)


def test_words_of_megatron() -> None:
    mix = read_foreign(["0.3", "data/web_text_document", "7e-1", "b/code", "1", "c/code"])
    assert [(one.name, one.weight) for one in mix.sources] == [
        ("web", Decimal("0.3")),
        ("code", Decimal("0.7")),
        ("code-2", Decimal(1)),
    ]
    assert mix.without_text == ["web", "code", "code-2"]
    text = mix_toml(mix)
    assert "# tokens of: data/web_text_document.bin\n" in text
    assert tomllib.loads(text)["source"]["code"] == {"inputs": [], "weight": 0.7}


def test_a_file_of_data_args(tmp_path: Path) -> None:
    found = made(tmp_path, "args.txt", "0.3 web_text_document\n0.7 code\n")
    assert {name: one["weight"] for name, one in found["source"].items()} == {
        "web": Decimal("0.3"),
        "code": Decimal("0.7"),
    }


def test_a_source_mixture_of_olmo(tmp_path: Path) -> None:
    found = made(tmp_path, "mix.yaml", OLMO)
    assert found == {
        "tokens": 1_000_000,
        "source": {
            "web": {"inputs": ["data/web/*.jsonl.gz"], "weight": Decimal("0.75")},
            "code": {"inputs": [], "weight": Decimal("0.25"), "max_epochs": Decimal(2)},
        },
    }


def test_train_weights_of_levanter(tmp_path: Path) -> None:
    found = made(tmp_path, "levanter.yml", LEVANTER)
    assert found["source"] == {
        "c4": {
            "inputs": [f"gs://data/c4-train.{n}.jsonl" for n in ("00008", "00009", "00010")],
            "weight": 3,
        },
        "wiki": {
            "inputs": ["hf://datasets/ORG/wiki"],
            "weight": Decimal("0.1"),
            "text_column": "body",
        },
    }


def test_components_of_levanter(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        "new.yaml",
        "components:\n  a:\n    source: {type: url, train_urls: [x.jsonl]}\n"
        "    format: {type: text, text_key: content}\ntrain_weights: {a: 1}\n",
    )
    assert found["source"]["a"] == {"inputs": ["x.jsonl"], "weight": 1, "text_column": "content"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("train_weights: [[0, {a: 1}]]\n", "changes during training"),
        ("train_weights: {a: 1}\n", "a is not described"),
        ("train_weights: {a: x}\nconfigs: {a: {id: b}}\n", "a: must be a number"),
        ("train_weights: {a: 0}\nconfigs: {a: {id: b}}\n", "no source has a weight above 0"),
        ("train_weights: {a: 1}\nconfigs: {a: {}}\n", "a: train_urls: must be a list"),
        ("sources: []\n", "sources: must be a list that is not empty"),
        ("sources: [{target_ratio: 1}]\n", "source 1: source_name: is missing"),
        ("sources: [{source_name: a, target_ratio: -1, paths: [x]}]\n", "a: must be a number"),
        ("sources: [{source_name: a, target_ratio: 1}]\n", "a: paths: must be a list"),
        ("a: 1\n", "neither a mixture of OLMo-core"),
        ("a: &b 1\n", "line 1: & has a meaning"),
    ],
)
def test_files_that_are_no_mixture_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        made(tmp_path, "x.yaml", content)
    assert error.value.message.startswith(f"{tmp_path}/x.yaml: ")


@pytest.mark.parametrize("words", [["a", "b"], ["0.3", "a", "0.7"], ["0.3", "a", "x", "b"], []])
def test_words_without_weights_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="not a list of weights and prefixes"):
        read_foreign(words)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_foreign([str(tmp_path / "none.yaml")])
    (tmp_path / "x.yaml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        read_foreign([str(tmp_path / "x.yaml")])


def test_braces_as_a_shell_expands_them() -> None:
    assert braces("a{1..3}b") == ["a1b", "a2b", "a3b"]
    assert braces("{08..10}") == ["08", "09", "10"]
    assert braces("{x,y}{1..2}") == ["x1", "x2", "y1", "y2"]
    assert braces("plain{}") == ["plain{}"]
    for many in ("{1..999999}", "{3..1}", "{1..1000}{1..1000}"):
        with pytest.raises(UsageError, match="too many"):
            braces(many)


def test_names_that_toml_must_quote(tmp_path: Path) -> None:
    text = mix_toml(read_foreign(["1", 'a "b" \\ é\x7f']))
    assert list(tomllib.loads(text)["source"]) == ['a "b" \\ é\x7f']


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["mix", "import", *words])
    if isinstance(done.exception, TokenmillError):
        return 2, done.exception.message
    return done.exit_code, done.output


def test_the_command_writes_a_file_that_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "olmo.yaml").write_text(OLMO.replace(".npy", ".jsonl"))
    out = tmp_path / "mix.toml"
    assert run(str(tmp_path / "olmo.yaml"), "-o", str(out))[0] == 0
    web, code = read_mixture(out).sources
    assert (float(web.weight), float(code.max_epochs)) == (0.75, 2)
    assert code.inputs[1] == "s3://bucket/code/part-1.jsonl"
    status, told = run(str(tmp_path / "olmo.yaml"), "-o", str(out))
    assert (status, "exists already" in told) == (2, True)


def test_paths_are_seen_from_the_file_that_is_written(tmp_path: Path) -> None:
    text = mix_toml(read_foreign(_with_input(tmp_path)), "sub/folder")
    assert tomllib.loads(text)["source"]["a"]["inputs"] == ["../../data/x.jsonl"]


def _with_input(tmp_path: Path) -> list[str]:
    content = "sources: [{source_name: a, target_ratio: 1, paths: [data/x.jsonl]}]\n"
    (tmp_path / "a.yaml").write_text(content)
    return [str(tmp_path / "a.yaml")]


def test_the_command_prints_and_names_what_is_missing() -> None:
    status, told = run("--data-path", "0.3", "a", "0.7", "b")
    assert status == 0
    assert "[source.a]" in told
    assert "2 sources without text files (a, b)" in told
