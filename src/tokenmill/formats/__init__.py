"""Formats: one file per trainer's format; this is the registry.

Input: tokens, the ends of documents, and counts.
Does: knows the names, headers, indexes, defaults and limits of a trainer's files.
Output: buffers of bytes; a format never touches the disk.
"""

from tokenmill.errors import UsageError, did_you_mean
from tokenmill.formats.base import Format
from tokenmill.formats.build_nanogpt import BUILD_NANOGPT
from tokenmill.formats.datatrove import DATATROVE
from tokenmill.formats.flat import FLAT
from tokenmill.formats.hf import HF
from tokenmill.formats.litdata import LITDATA
from tokenmill.formats.llmc import LLMC
from tokenmill.formats.mds import MDS
from tokenmill.formats.megatron import MEGATRON
from tokenmill.formats.modded import MODDED
from tokenmill.formats.nanogpt import NANOGPT
from tokenmill.formats.olmo import OLMO
from tokenmill.formats.parquet import PARQUET
from tokenmill.settings import Layout, PlanSettings
from tokenmill.system.plugins import added

PLAIN = (NANOGPT, LLMC, MODDED, BUILD_NANOGPT, MEGATRON, DATATROVE, OLMO, FLAT)
FRAMED = (MDS, LITDATA, HF, PARQUET)
FORMATS: dict[str, Format] = {format.name: format for format in (*PLAIN, *FRAMED)}
# What people call the trainers, where it is not the format's name.
TRAINERS = {
    "megatron-lm": "megatron",
    "nemo": "megatron",
    "gpt-neox": "megatron",
    "modded-nanogpt": "modded",
    "nanotron": "datatrove",
    "dolma": "olmo",
    "mosaicml": "mds",
    "streaming": "mds",
    "llm-foundry": "mds",
    "litgpt": "litdata",
    "huggingface": "hf",
    "arrow": "hf",
    "datasets": "hf",
    "torchtitan": "flat",
    "bin": "nanogpt",
}
FORMATS_GROUP = "tokenmill.formats"  # entry points by which another package adds a format


def get_format(name: str) -> Format:
    if name in FORMATS:
        return FORMATS[name]
    others: dict[str, Format] = {one.name: one for one in added(FORMATS_GROUP, Format)}
    if name in others:
        return others[name]
    known = [*FORMATS, *others]
    raise UsageError(
        f"unknown format {name!r}",
        hint=f"{did_you_mean(name, known, TRAINERS)}known: {', '.join(known)}",
    )


def is_format(name: str) -> bool:
    """Whether a format has this name; a package that is broken has none."""
    try:
        get_format(name)
    except UsageError:
        return False
    return True


def copies_of(settings: PlanSettings) -> list[Layout]:
    """Every copy of the tokens that a job writes: one for each format, and one more if the first
    format is made at the end, because the bare stream is kept until then."""
    made_last = is_made_last(settings)
    return [settings.first, *settings.layouts] if made_last else list(settings.layouts)


def is_made_last(settings: PlanSettings) -> bool:
    """Whether no file of the first format is what workers write: it has something around every
    document, or only the count of all tokens tells where a split begins."""
    return get_format(settings.first.format).framed or settings.val.kind == "tail"


__all__ = ["FORMATS", "Format", "copies_of", "get_format", "is_format", "is_made_last"]
