"""The tables of formats in the README and in docs/formats.md are made from the registry."""

from __future__ import annotations

from support.inputs import ROOT

from tokenmill.formats import FORMATS
from tokenmill.formats.base import Format

DEFAULT = "nanogpt"
SEPARATORS = {"append": "after", "prepend": "before", "none": "none"}


def shards(fmt: Format) -> str:
    if not fmt.sharded:
        return "one file per split"
    size = f"{fmt.shard_tokens / 1e6:.3g}M"
    return f"{'at' if fmt.cut == 'exact' else 'at documents, from'} {size} tokens"


def name(fmt: Format) -> str:
    return f"`{fmt.name}`" + (" (default)" if fmt.name == DEFAULT else "")


def short_row(fmt: Format) -> tuple[str, ...]:
    return name(fmt), fmt.trainer, fmt.files


def row(fmt: Format) -> tuple[str, ...]:
    val = {"shard": "the first shard", "none": "none"}.get(fmt.val, f"{fmt.val}, by hash")
    return *short_row(fmt), SEPARATORS[fmt.eot], shards(fmt), val


def table(*rows: tuple[str, ...]) -> str:
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, f"|{' --- |' * len(rows[0])}", *body])


def test_the_tables_of_formats_are_the_registry() -> None:
    short = ("`--format`", "read by", "files")
    for path, wanted in (
        ("README.md", table(short, *map(short_row, FORMATS.values()))),
        (
            "docs/formats.md",
            table((*short, "separator", "cut", "val"), *map(row, FORMATS.values())),
        ),
    ):
        assert wanted in (ROOT / path).read_text(), f"put this into {path}:\n\n{wanted}"


def test_the_options_name_every_format() -> None:
    from tokenmill.cli.options import FORMAT
    from tokenmill.planning.options import Options

    command = FORMAT(lambda: None)
    told = command.__click_params__[0].help
    assert told.partition(": ")[2].partition(";")[0].split(", ") == list(FORMATS)
    assert Options().format == DEFAULT
