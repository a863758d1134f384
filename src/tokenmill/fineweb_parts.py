"""FineWeb and FineWeb-Edu: which files a sample or a dump is, and what llm.c calls the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenmill.errors import UsageError, did_you_mean

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


class FineWeb(NamedTuple):
    """A part of FineWeb: the input, and llm.c's names for the output."""

    input: str
    output: str
    type: str

    def name(self, format: str | Sequence[str]) -> str:
        first = (format if isinstance(format, str) else ",".join(format)).split(",")[0].strip()
        return NAMES.get(first, NAMES[DEFAULT_FORMAT])[self.type]


def find_fineweb(version: str = "10B", type: str = "edu", revision: str = "main") -> FineWeb:
    """`version`: 10B, 100B or 350B (the samples), or a dump such as CC-MAIN-2024-10."""
    if type not in REPOSITORIES:
        raise UsageError(
            f"--type {type!r}: must be one of {', '.join(REPOSITORIES)}",
            hint=did_you_mean(str(type), REPOSITORIES).strip(),
        )
    label = version.strip().upper()
    sample = label.removeprefix("SAMPLE-").removesuffix("T")
    if sample in SAMPLES:
        path, name = f"sample/{sample}T", sample
    elif DUMP.fullmatch(label):
        path, name = f"data/{label}", f"_{label}"
    else:
        raise UsageError(
            f"--version {version!r}: no such part of FineWeb",
            hint=f"there are {', '.join(SAMPLES)}, and dumps such as CC-MAIN-2024-10",
        )
    return FineWeb(
        input=f"hf://datasets/{REPOSITORIES[type]}@{revision}/{path}/*.parquet",
        output=NAMES["llmc"][type] + name,
        type=type,
    )


def fineweb_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `prepare` for a part of FineWeb that is named by version, type, revision."""
    part = find_fineweb(*(options.pop(name) for name in ("version", "type", "revision")))
    options |= {"inputs": part.input, "output": options["output"] or part.output}
    return {**options, "name": options["name"] or part.name(options["format"])}
