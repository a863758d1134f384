"""One file per trainer's format; this is the registry."""

from tokenmill.config import PlanSettings
from tokenmill.errors import UsageError
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

PLAIN = (NANOGPT, LLMC, MODDED, BUILD_NANOGPT, MEGATRON, DATATROVE, OLMO, FLAT)
FRAMED = (MDS, LITDATA, HF, PARQUET)
FORMATS: dict[str, Format] = {format.name: format for format in (*PLAIN, *FRAMED)}


def get_format(name: str) -> Format:
    try:
        return FORMATS[name]
    except KeyError:
        raise UsageError(f"unknown format {name!r}", hint=f"known: {', '.join(FORMATS)}") from None


def copies_of(settings: PlanSettings) -> list[PlanSettings]:
    """Every copy of the tokens that a job writes: one for each format, and where the first is
    framed the bare stream besides, which lies there until the end."""
    framed = get_format(settings.format).framed
    return [settings, *settings.layouts] if framed else list(settings.layouts)


__all__ = ["FORMATS", "Format", "copies_of", "get_format"]
