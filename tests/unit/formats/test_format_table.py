"""The README's table of formats is made from the registry: it cannot be wrong."""

from __future__ import annotations

from support.inputs import ROOT

from tokenmill.formats import FORMATS
from tokenmill.formats.base import Format

HEAD = """| `--format` | read by | files | separator | cut | val |
| --- | --- | --- | --- | --- | --- |"""
SEPARATORS = {"append": "after", "prepend": "before", "none": "none"}
DEFAULT = "nanogpt"


def shards(fmt: Format) -> str:
    if not fmt.sharded:
        return "one file a split"
    size = f"{fmt.shard_tokens / 1e6:.3g}M"
    return f"{'at' if fmt.cut == 'exact' else 'at documents, from'} {size} tokens"


def row(fmt: Format) -> str:
    name = f"`{fmt.name}`" + (" (default)" if fmt.name == DEFAULT else "")
    val = {"shard": "the first shard", "none": "none"}.get(fmt.val, f"{fmt.val}, by hash")
    cells = (name, fmt.trainer, fmt.files, SEPARATORS[fmt.eot], shards(fmt), val)
    return f"| {' | '.join(cells)} |"


def table() -> str:
    return "\n".join([HEAD, *map(row, FORMATS.values())])


def test_the_table_of_formats_in_the_readme_is_the_registry() -> None:
    assert table() in (ROOT / "README.md").read_text(), f"put this into README.md:\n\n{table()}"


def test_the_options_name_every_format() -> None:
    from tokenmill.cli.options import FORMAT
    from tokenmill.planning.options import Options

    command = FORMAT(lambda: None)
    told = command.__click_params__[0].help
    assert told.partition(": ")[2].partition(";")[0].split(", ") == list(FORMATS)
    assert Options().format == DEFAULT
