"""One file per trainer's format; this is the registry."""

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


__all__ = ["FORMATS", "Format", "get_format"]
