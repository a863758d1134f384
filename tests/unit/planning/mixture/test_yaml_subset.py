"""The plain part of YAML: the same values as PyYAML's, or a refusal."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.planning.mixture.yaml_subset import Value, read_yaml

TEXTS = [
    "a: 1\nb:\n  c: x  # why\n  d: 'it''s'\n",
    '---\n# all\na:\n- 1\n- two words\n- "q # no\\n"\n',
    "a:\n  - b: 1\n    c: 2\n  - b: 3\n    c:\n      - x\n      - y\n",
    "- - a\n  - b\n- c\n",
    "a: [1, 'x, y', {k: v, l: [m]}]\nb: {}\nc: []\n",
    "a: gs://bucket/x_{00..10}.jsonl\nb: http://host:80/x#y\n",
    "a:\nb: ''\n",
    "'a b': 1\n\"c: d\": 2\n-x: 3\n",
    "a:\n  b:\n    c: 1\n  d: 2\ne: 3\n",
    "train_weights: {web: 0.6, code: 0.4}\n",
    "urls: [gs://a/b.jsonl, https://c:1/d]\n",
    "a: x y z   \n\n\nb: é\n",
    "-\n  a: 1\n-\n  - 2\n",
    "",
]


def by_library(text: str) -> object:
    value = yaml.load(text, Loader=yaml.BaseLoader)  # every scalar as text
    return "" if value is None else value


@pytest.mark.parametrize("text", TEXTS)
def test_the_values_are_those_of_pyyaml(text: str) -> None:
    assert read_yaml(text) == by_library(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &x 1\nb: *x\n", "line 1: & has a meaning"),
        ("a: !!python/object:os.system x\n", "line 1: ! has a meaning"),
        ("a: |\n  text\n", "line 1: | has a meaning"),
        ("a: one\n  two\n", "line 2: a text over several lines"),
        ("- one\n  two\n", "line 2: a text over several lines"),
        ("a: 1\na: 2\n", "line 2: a stands twice"),
        ("<<: {a: 1}\n", "line 1: a merge of mappings"),
        ("a:\n\t- 1\n", "line 2: a tab in front"),
        ("a: [1,\n 2]\n", "line 1: a value in brackets"),
        ("a: 'x\n", "line 1: a quote without its end"),
        ('a: "\\x41"\n', "line 1: an escape sequence"),
        ("a: 'x' y\n", "line 1: 'y' behind the value"),
        ("a: b: c\n", "line 1: a second colon"),
        ("a: 1\nb\n", "line 2: is neither a key"),
        ("  a: 1\nb: 2\n", "line 2: is not indented"),
        ("a: {b, c}\n", "line 1: not a mapping"),
        ("- " * 60 + "x", "nested too deeply"),
        ("a: " + "[" * 60, "nested too deeply"),
    ],
)
def test_what_is_not_read_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_yaml(text)


names = st.text("abcz_-. 019:#'\"/{}[]é", max_size=8)
values = st.recursive(
    names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(values, st.booleans())
def test_what_pyyaml_writes_is_read_as_it_was_or_refused(value: Value, flow: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True, width=10**6)
    try:
        found = read_yaml(text)
    except UsageError:
        return
    assert found == by_library(text)


@given(st.text("ab:- \n'\"#[]{},&*!|>\t", max_size=30))
def test_any_text_is_read_as_by_pyyaml_or_refused(text: str) -> None:
    try:
        found = read_yaml(text)
    except UsageError:
        return
    try:
        wanted = by_library(text)
    except yaml.YAMLError:
        return  # more than YAML allows: harmless
    assert found == wanted
