"""`python -m reliability`: run the rows, print the table, write reliability.json."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import reliability
from reliability.scorecard import Row, run_apart, run_row

ROOT = Path(__file__).resolve().parent.parent


def rows() -> list[ModuleType]:
    """The modules of the rows, r01... in order."""
    names = [m.name for m in pkgutil.iter_modules(reliability.__path__) if m.name.startswith("r")]
    modules = [importlib.import_module(f"reliability.{name}") for name in sorted(names)]
    return [module for module in modules if hasattr(module, "ID")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability", description=__doc__)
    parser.add_argument("--only", default="", help="rows, as in R1,R4; default: all")
    parser.add_argument("--fast", action="store_true", help="fewer cases: minutes, not an hour")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", default="", help="one case of the row named by --only")
    parser.add_argument(
        "--json", metavar="FILE", help="write here; default, of all rows: reliability.json"
    )
    parser.add_argument("--show", metavar="FILE", help="only print such a file, as Markdown")
    arguments = parser.parse_args()
    if arguments.show:
        print(as_markdown(json.loads(Path(arguments.show).read_text())["rows"]))
        return 0
    wanted = {name for name in arguments.only.upper().split(",") if name}
    modules = [module for module in rows() if not wanted or module.ID in wanted]
    if not modules or (arguments.case and len(modules) != 1):
        parser.error("--case needs one row in --only" if modules else "no such row")
    file = arguments.json or ("" if wanted else str(ROOT / "reliability.json"))
    done: list[Row] = []
    for module in modules:
        print(f"{module.ID} {module.PROMISE} ...", file=sys.stderr, flush=True)
        if len(modules) > 1:
            row = run_apart(module, seed=arguments.seed, fast=arguments.fast)
        else:
            row = run_row(module, seed=arguments.seed, fast=arguments.fast, only=arguments.case)
        done.append(row)
        print(f"   {'pass' if row.passed else 'FAIL'}: {row.value} ({row.seconds:.0f} s)",
              file=sys.stderr, flush=True)  # fmt: skip
        if file:  # after each row: a stopped run has written what it knows
            content = {"rows": [r.to_dict() for r in done]}
            Path(file).write_text(json.dumps(content, indent=1) + "\n")
    show(done, arguments.seed, arguments.fast)
    return 0 if all(row.passed for row in done) else 1


def show(done: list[Row], seed: int, fast: bool) -> None:
    table = Table("id", "promise", "result", "mark", "pass", "seconds", title="Reliability")
    for row in done:
        verdict = "[green]pass[/]" if row.passed else "[red]FAIL[/]"
        table.add_row(row.id, row.promise, row.value, row.mark, verdict, f"{row.seconds:.0f}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for row in done:
        for failure in row.failures[:5]:
            again = ["python", "-m", "reliability", "--only", row.id, "--seed", str(seed)]
            again += ["--fast"] if fast else []
            again += ["--case", failure.case] if failure.case else []
            print(f"\n{row.id} {failure.case}: {failure.what}\n  again: {shlex.join(again)}")
        if len(row.failures) > 5:
            print(f"\n{row.id}: {len(row.failures) - 5} more failures")


def as_markdown(told: list[dict[str, Any]]) -> str:
    """The table for docs/reliability.md."""
    promises = {module.ID: module.PROMISE for module in rows()}
    lines = ["| id | promise | seen | pass | seconds |", "| --- | --- | --- | --- | ---: |"]
    for row in told:
        verdict = "yes" if row["pass"] else "**no**"
        promise = f"{promises[row['id']]}: {row['mark']}"
        lines.append(
            f"| {row['id']} | {promise} | {row['value']} | {verdict} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
