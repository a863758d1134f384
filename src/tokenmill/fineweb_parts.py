"""FineWeb and FineWeb-Edu: which files a sample or a dump is, and what llm.c calls the result."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import msgspec

from tokenmill.engines.observer import Observer
from tokenmill.errors import UsageError
from tokenmill.pipeline import Prepared, Result, prepare

REPOSITORIES = {"edu": "HuggingFaceFW/fineweb-edu", "classic": "HuggingFaceFW/fineweb"}
SAMPLES = ("10B", "100B", "350B")
DUMP = re.compile(r"CC-MAIN-\d{4}-\d{2}")
# Three trainers, three spellings.
NAMES = {
    "llmc": {"edu": "edu_fineweb", "classic": "fineweb"},
    "modded": {"edu": "finewebedu", "classic": "fineweb"},
    "build-nanogpt": {"edu": "edufineweb", "classic": "fineweb"},
}
DEFAULT_FORMAT = "llmc"


class FineWeb(msgspec.Struct, frozen=True, kw_only=True):
    """A part of it: the input, and llm.c's names for what is made of it."""

    input: str
    output: str
    type: str

    def name(self, format: str) -> str:
        first = format.split(",")[0].strip()
        return NAMES.get(first, NAMES[DEFAULT_FORMAT])[self.type]


def find_fineweb(version: str = "10B", type: str = "edu", revision: str = "main") -> FineWeb:
    """`version`: 10B, 100B or 350B (the samples), or a dump such as CC-MAIN-2024-10."""
    if type not in REPOSITORIES:
        raise UsageError(f"--type {type!r}: must be one of {', '.join(REPOSITORIES)}")
    asked = re.fullmatch(r"(?:sample-)?(\d+B)T?", version.strip(), re.IGNORECASE)
    sample = asked[1].upper() if asked else ""
    if sample in SAMPLES:
        path, label = f"sample/{sample}T", sample
    elif DUMP.fullmatch(version.strip().upper()):
        label = version.strip().upper()
        path = f"data/{label}"
    else:
        raise UsageError(
            f"--version {version!r}: no such part of FineWeb",
            hint=f"there are {', '.join(SAMPLES)}, and dumps such as CC-MAIN-2024-10",
        )
    prefix = NAMES["llmc"][type]
    return FineWeb(
        input=f"hf://datasets/{REPOSITORIES[type]}@{revision}/{path}/*.parquet",
        output=f"{prefix}{label}" if sample else f"{prefix}_{label}",
        type=type,
    )


def fineweb(
    version: str = "10B",
    type: str = "edu",
    output: str | os.PathLike[str] | None = None,
    *,
    revision: str = "main",
    observer: Observer | None = None,
    on_plan: Callable[[Prepared], None] | None = None,
    **options: Any,
) -> Result:
    """Fetch and tokenize a sample or a dump of FineWeb; takes every option of `prepare`.

    >>> tokenmill.fineweb("10B", "edu", "edu_fineweb10B", format="llmc")
    """
    part = find_fineweb(version, type, revision)
    options.setdefault("format", DEFAULT_FORMAT)
    options["name"] = options.get("name") or part.name(options["format"])
    return prepare(part.input, output or part.output, observer=observer, on_plan=on_plan, **options)
