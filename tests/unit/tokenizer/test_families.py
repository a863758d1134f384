"""The table of tokenizer families is the only place that knows what differs between them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenmill
from tokenmill.tokenizer.bundled import ENCODINGS, Encoding
from tokenmill.tokenizer.families import FAMILIES, family_of

SOURCE = Path(tokenmill.__file__).parent


KINDS = {family.kind for family in FAMILIES}


def branches(tree: ast.AST) -> Iterator[ast.AST]:
    """Places that ask which family an encoding belongs to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            names = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            if names & KINDS:
                yield node
        elif isinstance(node, ast.Attribute) and node.attr == "kind":
            owner = node.value
            if getattr(owner, "id", getattr(owner, "attr", "")) == "encoding":
                yield node


def test_no_module_outside_the_families_asks_for_a_kind() -> None:
    families = SOURCE / "tokenizer" / "families"
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"  # type: ignore[attr-defined]
        for path in SOURCE.rglob("*.py")
        if families not in path.parents
        for node in branches(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'if kind == "tiktoken": pass',
        'if self.encoding.kind in ("sentencepiece",): pass',
        "FACTORS[encoding.kind]",
        'match kind:\n  case "tokenizer.json": pass',
    ],
)
def test_the_test_above_sees_a_branch(line: str) -> None:
    assert list(branches(ast.parse(line)))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b'{"version": "1.0", "model"', "tokenizer.json"),
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
        (b"\n\x0e\n\x05<unk>\x15\x00\x00", "sentencepiece"),
        (b"", "sentencepiece"),
    ],
)
def test_the_content_of_a_file_decides_its_family(head: bytes, kind: str) -> None:
    assert next(family.kind for family in FAMILIES if family.recognises(head)) == kind


def test_every_family_says_all_that_differs() -> None:
    for family in FAMILIES:
        encoding = Encoding(name="x", kind=family.kind, sha256="", special_tokens={}, vocab_size=1)
        assert family_of(encoding) is family
        assert family.library
        assert family.speed > 0
        assert family.reference_factor > family.unbroken_factor > 1
    assert [family.kind for family in FAMILIES if family.ranks_only] == ["tiktoken"]
    assert {family_of(encoding).library for encoding in ENCODINGS.values()} == {"tiktoken"}
