"""One file per trainer's format; this is the registry."""

from tokenmill.errors import UsageError
from tokenmill.formats.base import Format
from tokenmill.formats.llmc import LLMC
from tokenmill.formats.nanogpt import NANOGPT

FORMATS: dict[str, Format] = {format.name: format for format in (NANOGPT, LLMC)}


def get_format(name: str) -> Format:
    try:
        return FORMATS[name]
    except KeyError:
        raise UsageError(f"unknown format {name!r}", hint=f"known: {', '.join(FORMATS)}") from None


__all__ = ["FORMATS", "Format", "get_format"]
