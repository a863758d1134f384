"""`python -m reliability.farm`: draw tokenizer files, compare, print a table."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from reliability.farm.comparing import Result, examine
from reliability.farm.drawing import draw
from reliability.farm.processes import in_processes


def main() -> int:
    if sys.argv[1:2] == ["prove"]:
        from reliability.farm.proving import main as prove

        return prove(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m reliability.farm", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="configurations to draw")
    parser.add_argument("--documents", type=int, default=2000, help="documents for each")
    parser.add_argument("--seed", type=int, default=0, help="the first seed is SEED * 1,000,000")
    parser.add_argument("--one", type=int, metavar="SEED", help="this configuration only")
    parser.add_argument("--show", action="store_true", help="print each configuration")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep", metavar="FOLDER", help="write the files of --one here")
    arguments = parser.parse_args()
    first = arguments.seed * 1_000_000
    seeds = range(first, first + arguments.count)
    if arguments.one is not None:
        seeds = range(arguments.one, arguments.one + 1)
    began = time.monotonic()
    results: list[Result] = []
    one = functools.partial(run, count=arguments.documents, keep=arguments.keep)
    for result in in_processes(one, seeds, arguments.processes):
        results.append(result)
        if arguments.show or arguments.one is not None:
            show_one(result)
    show(results, time.monotonic() - began)
    return 1 if any(result.differences for result in results) else 0


def run(seed: int, count: int, keep: str | None = None) -> Result:
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tokenmill-farm-") as folder:
        return examine(draw(seed, Path(keep or folder)), count)


def show_one(result: Result) -> None:
    how = result.rules or "reference"
    print(f"{result.seed} {result.kind} | {result.line} | {how}: {result.differences} differences")
    if result.differences:
        print(f"    {result.example}")
    sys.stdout.flush()


def show(results: list[Result], seconds: float) -> None:
    table = Table(
        "kind", "encoder", "configurations", "documents", "to the reference", "differences",
        "with differences",
    )  # fmt: skip
    groups = sorted({(result.kind, result.rules) for result in results})
    for kind, rules in groups:
        group = [r for r in results if (r.kind, r.rules) == (kind, rules)]
        table.add_row(
            kind,
            rules or "reference",
            f"{len(group):,}",
            f"{sum(r.documents for r in group):,}",
            f"{sum(r.to_reference for r in group):,}",
            f"{sum(r.differences for r in group):,}",
            f"{sum(bool(r.differences) for r in group):,}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(summary(results) + f", {seconds:.0f} s")
    failing = [result for result in results if result.differences]
    for line, number in Counter(r.line for r in failing).most_common(40):
        seeds = " ".join(str(r.seed) for r in failing if r.line == line)
        print(f"  {number} x {line}: --one {seeds}")


def summary(results: list[Result]) -> str:
    fast = sum(result.is_fast for result in results)
    failed = sum(result.library_failed for result in results)
    return (
        f"{len(results):,} tokenizer files, {fast:,} of them fast, "
        f"{sum(result.documents for result in results):,} documents, "
        f"{sum(result.differences for result in results):,} differences; "
        f"{failed:,} documents that the library itself cannot encode; "
        f"{sum(result.redrawn for result in results):,} files were refused and drawn again"
    )


if __name__ == "__main__":
    sys.exit(main())
