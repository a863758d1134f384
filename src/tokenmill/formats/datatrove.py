"""datatrove, which nanotron reads: `.ds` of tokens, `.ds.index` of document ends, metadata.

datatrove, pipeline/tokens/tokenizer.py and merger.py: the index is one little-endian uint64 for
each document, where it ends, in tokens. The metadata is three lines without a last line end. A
folder is read whole, so each split has its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings


def _metadata(settings: PlanSettings, layout: Layout, tokens: int) -> bytes:
    lines = (f"{settings.tokenizer}|{base.itemsize(layout)}", str(tokens), metric(tokens))
    return "\n".join(lines).encode()


def metric(number: int) -> str:
    """As `humanize.metric(number, unit="T")` writes it: three digits and a prefix."""
    thousands, digits = divmod(len(str(number)) - 1, 3)
    prefix = " kMGTPEZYRQ"[thousands].strip()
    return f"{number / 1000**thousands:.{2 - digits}f} {prefix}T"


def _sidecars(shard: base.Shard) -> Iterator[tuple[str, base.Buffers]]:
    yield f"{shard.path}.index", (ends.astype("<u8") for _, ends in base.spans(shard.lengths()))
    yield f"{shard.path}.metadata", [_metadata(shard.settings, shard.layout, shard.tokens)]


def _whole(
    settings: PlanSettings, layout: Layout, _: str, made: base.MadeShards
) -> Iterator[tuple[str, bytes]]:
    for split, shards in made.items():
        total = sum(shard.tokens for shard, _ in shards)
        yield f"{split}/{layout.name}.ds.metadata", _metadata(settings, layout, total)


DATATROVE = base.Format(
    name="datatrove",
    trainer="nanotron (datatrove)",
    files="`train/000_NAME.ds`, `.ds.index`, `.ds.metadata`",
    beside="a .ds.index beside each .ds, and metadata",
    file_name=base.file_names("{split}/{number:03d}_{name}.ds"),
    trainer_glob=base.globs("{split}/*.ds", "{split}/*.ds.index"),
    load_lines=base.lines(
        "# nanotron: dataset_folder: {split_folder}",
        "from datatrove.utils.dataset import DatatroveFolderDataset",
        "dataset = DatatroveFolderDataset({split_folder!r}, seq_len=2048, "
        "filename_pattern='*.ds', token_size={itemsize})",
    ),
    sidecars=_sidecars,
    whole=_whole,
)
