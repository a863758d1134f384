"""modded-nanogpt: llm.c's shards, cut at documents, each document begun by 50256.

https://github.com/KellerJordan/modded-nanogpt, train_gpt.py: its loader looks for 50256 in each
shard and begins at the first one, so what stands before it, the rest of a document that a cut
left there, is never seen: shards are cut at documents. It loads the next shard while it uses one,
and fails where there is no second. It reads uint16 alone.
"""

from __future__ import annotations

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.errors import UsageError
from tokenmill.formats.base import Format
from tokenmill.formats.llmc import (
    HEADER_WORDS,
    max_shard_tokens,
    shard_globs,
    shard_header,
    shard_name,
)

BEGINS_DOCUMENTS = 50256


def _check(settings: PlanSettings) -> None:
    if settings.eot != "prepend" or settings.eot_id != BEGINS_DOCUMENTS:
        raise UsageError(
            f"--format modded: modded-nanogpt finds documents by the {BEGINS_DOCUMENTS} before "
            f"each; here the separator is {settings.eot_id} and --eot {settings.eot}",
            hint="use --tokenizer gpt2 and --eot prepend, or --format llmc",
        )
    if settings.dtype != "uint16":
        raise UsageError("--format modded: modded-nanogpt reads uint16 alone")


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    return [
        "# modded-nanogpt's train_gpt.py, class Hyperparameters:",
        f'#     train_files = "{directory}/{settings.name}_train_*.bin"',
        f'#     val_files = "{directory}/{settings.name}_val_*.bin"',
        "import numpy as np",
        f"tokens = np.memmap({directory + '/' + file!r}, "
        f"dtype=np.{np.dtype(settings.dtype)}, mode='r', offset={HEADER_WORDS * 4})",
    ]


MODDED = Format(
    name="modded",
    trainer="modded-nanogpt",
    files="`NAME_val_000000.bin`, `NAME_train_000001.bin` ..., two of train at least",
    eot="prepend",
    cut="document",
    val="shard",
    sharded=True,
    keeps_documents=True,
    check=_check,
    header_bytes=lambda settings: HEADER_WORDS * 4,
    header=shard_header,
    file_name=shard_name,
    trainer_glob=shard_globs,
    max_shard_tokens=max_shard_tokens,
    min_train_shards=2,
    load_lines=_load_lines,
)
