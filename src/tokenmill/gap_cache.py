"""Which documents need the reference encoder: the shipped table, or one measured once and kept.

Measuring compares both encoders on every code point there is, which takes half a minute or more.
The result depends on the vocabulary and on the versions of both libraries, and is kept under
their names in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import msgspec
import xxhash

from tokenmill.encoders import measure_gap
from tokenmill.encoders.fast import FastEncoderMissingError
from tokenmill.encoders.gap_tables import COMPOSING, MEASURED_FOR, MEASURED_FOR_FILES, Ranges
from tokenmill.encoders.unicode_gap import merge, shipped_gap
from tokenmill.errors import StorageError
from tokenmill.storage import cache_folder, keep_in_cache
from tokenmill.tokenizer import Encoding

LIBRARY = {"tiktoken": "tiktoken", "tokenizer.json": "tokenizers", "sentencepiece": "sentencepiece"}
# More different code points than newer Unicode explains: another way of splitting altogether.
TOO_MANY = 20_000


def gap_for(
    encoding: Encoding, note: Callable[[str], None], *, measure: bool = True
) -> Ranges | None:
    """Code points whose documents go to the reference; None: the fast encoder does not do, or
    nobody has measured it yet and it is not to be measured now."""
    if encoding.gigatoken_scheme is None:
        return ()
    library = LIBRARY[encoding.kind]
    versions = {name: metadata.version(name) for name in ("gigatoken", library)}
    if encoding.known_rules and versions in (MEASURED_FOR, MEASURED_FOR_FILES):
        return shipped_gap(encoding.kind)
    gap = _kept(encoding, versions, note, measure)
    if gap is None:
        return None
    if gap and (gap[0][0] < 0x80 or sum(last - first + 1 for first, last in gap) > TOO_MANY):
        note(f"gigatoken does not split text as {encoding.name} asks: the reference encodes all")
        return None
    return gap if encoding.kind == "tiktoken" else merge(gap, COMPOSING)


def _kept(
    encoding: Encoding, versions: dict[str, str], note: Callable[[str], None], measure: bool
) -> Ranges | None:
    numbers = "-".join(f"{name}{version}" for name, version in versions.items())
    key = xxhash.xxh3_64_hexdigest(f"{encoding.sha256} {encoding.pattern}".encode())
    name = f"gap-1-{key}-{numbers}.json"
    try:
        return msgspec.json.decode((cache_folder() / name).read_bytes(), type=Ranges)
    except (OSError, msgspec.DecodeError):
        pass
    if not measure:
        return None
    note(f"comparing gigatoken with {encoding.name} on every code point (a minute, only once)")
    try:
        gap = measure_gap(encoding)
    except FastEncoderMissingError:
        return ()
    try:
        keep_in_cache(name, msgspec.json.encode(gap))
    except StorageError as error:
        note(f"the result cannot be kept, the next run compares again ({error.message})")
    return gap
