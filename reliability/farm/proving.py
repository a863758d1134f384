"""`python -m reliability.farm prove`: many vocabularies for each proven rule set, or all splits."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from reliability.farm.comparing import compare
from reliability.farm.documents import documents
from reliability.farm.drawing import Drawn
from reliability.farm.processes import in_processes
from reliability.farm.proven_styles import try_draw
from reliability.farm.splits import LENGTH, REPRESENTATIVES, check_splits
from tokenmill.tokenizer.proof.rules import RULE_SETS

ATTEMPTS = 4  # draws for each vocabulary: not every vocabulary obeys the rule set
BATCH = 25_000  # documents at a time, to keep the memory small


@dataclass
class Proof:
    """What was seen of one rule set."""

    rules: str
    vocabularies: int = 0
    not_fast: int = 0
    documents: int = 0
    to_reference: int = 0
    differences: int = 0
    example: str = ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.farm prove", description=__doc__)
    parser.add_argument("--rules", default="all", help="a rule set; default: all")
    parser.add_argument("--vocabularies", type=int, default=50)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--splits", action="store_true", help="every short text instead")
    parser.add_argument("--length", type=int, default=LENGTH, help="of the texts of --splits")
    parser.add_argument("--list", action="store_true", help="the names of the rule sets")
    chosen = parser.parse_args(arguments)
    if chosen.splits:
        return prove_splits(chosen.rules, chosen.length)
    if chosen.list:
        print("\n".join(RULE_SETS))
        return 0
    if chosen.rules not in ("all", *RULE_SETS):
        parser.error(f"no rule set {chosen.rules!r}; --list shows them")
    proofs = []
    for rules in RULE_SETS if chosen.rules == "all" else [chosen.rules]:
        began = time.monotonic()
        proof = prove(rules, chosen.vocabularies, chosen.documents, chosen.processes)
        proofs.append(proof)
        seconds = time.monotonic() - began
        print(f"{rules}: {proof.vocabularies} x {chosen.documents:,}, "
              f"{proof.differences} differences, {seconds:.0f} s",
              file=sys.stderr, flush=True)  # fmt: skip
    show(proofs)
    short = any(proof.vocabularies < chosen.vocabularies for proof in proofs)
    return 1 if short or any(proof.differences for proof in proofs) else 0


def prove(rules: str, vocabularies: int, count: int, processes: int = 1) -> Proof:
    """Vocabularies of one rule set, each compared on `count` documents."""
    one = functools.partial(prove_one, rules, count, vocabularies)
    parts = list(in_processes(one, range(vocabularies), processes))
    return Proof(
        rules,
        vocabularies=sum(part.vocabularies for part in parts),
        not_fast=sum(part.not_fast for part in parts),
        documents=sum(part.documents for part in parts),
        to_reference=sum(part.to_reference for part in parts),
        differences=sum(part.differences for part in parts),
        example=next((part.example for part in parts if part.example), ""),
    )


def prove_one(rules: str, count: int, step: int, first: int) -> Proof:
    """One fast vocabulary: the first of some draws that the rule set holds for."""
    proof = Proof(rules)
    for number in range(first, first + step * ATTEMPTS, step):
        with tempfile.TemporaryDirectory(prefix="tokenmill-prove-") as folder:
            drawn = try_draw(rules, number, Path(folder))
            if drawn is None or drawn.encoding.rules != rules:
                proof.not_fast += 1
                continue
            proof.vocabularies = 1
            _compare_all(proof, drawn, count)
            break
    return proof


def _compare_all(proof: Proof, drawn: Drawn, count: int) -> None:
    for start in range(0, count, BATCH):
        seed = (proof.rules, drawn.seed, start)
        result = compare(drawn, documents(seed, min(BATCH, count - start), drawn.tokens))
        proof.documents += result.documents
        proof.differences += result.differences
        proof.to_reference += result.to_reference
        if result.differences and not proof.example:
            proof.example = f"{drawn.line}, vocabulary {drawn.seed}: {result.example}"


def show(proofs: list[Proof]) -> None:
    table = Table(
        "rule set", "vocabularies", "not fast", "documents", "to the reference",
        "differences",
    )  # fmt: skip
    for proof in proofs:
        table.add_row(
            proof.rules,
            f"{proof.vocabularies:,}",
            f"{proof.not_fast:,}",
            f"{proof.documents:,}",
            f"{proof.to_reference:,}",
            f"{proof.differences:,}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for proof in proofs:
        if proof.differences:
            print(f"{proof.rules}: {proof.example}")


def prove_splits(wanted: str, length: int) -> int:
    table = Table("splitter", "texts", "differences")
    failed = False
    examples = []
    for scheme in REPRESENTATIVES:
        if wanted not in ("all", scheme):
            continue
        result = check_splits(scheme, length)
        table.add_row(scheme, f"{result.texts:,}", f"{result.differences:,}")
        failed = failed or bool(result.differences)
        if result.example:
            examples.append(f"{scheme}: {result.example}")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    for example in examples:
        print(example)
    return 1 if failed else 0
