"""modded-nanogpt: llm.c's shards, cut at documents, each document begun by 50256.

https://github.com/KellerJordan/modded-nanogpt, train_gpt.py: its loader looks for 50256 in each
shard and begins at the first one, so what stands before it, the rest of a document that a cut
left there, is never seen: shards are cut at documents. It loads the next shard while it uses one,
and fails where there is no second. It reads uint16 alone.
"""

from __future__ import annotations

import msgspec

from tokenmill.errors import UsageError
from tokenmill.formats import base
from tokenmill.formats.llmc import LLMC, SHARD_LINES
from tokenmill.settings import Layout, PlanSettings

BEGINS_DOCUMENTS = 50256


def _check(settings: PlanSettings, layout: Layout) -> None:
    if layout.eot != "prepend" or settings.eot_id != BEGINS_DOCUMENTS:
        raise UsageError(
            f"--format modded: modded-nanogpt finds documents by the {BEGINS_DOCUMENTS} before "
            f"each; here the separator is {settings.eot_id} and --eot {layout.eot}",
            hint="use --tokenizer gpt2 and --eot prepend, or --format llmc",
        )
    if layout.dtype != "uint16":
        raise UsageError("--format modded: modded-nanogpt reads only uint16")


def _load_lines(settings: PlanSettings, layout: Layout, folder: str, file: str) -> list[str]:
    globs = base.split_globs(settings, folder, file)
    names = zip(("train_files", "val_files"), globs, strict=True)
    shown = ["# modded-nanogpt's train_gpt.py, class Hyperparameters:"]
    shown += [f'#     {name} = "{path}"' for name, path in names if path]
    return shown + base.lines(*SHARD_LINES)(settings, layout, folder, file)


MODDED = msgspec.structs.replace(
    LLMC,
    name="modded",
    trainer="modded-nanogpt",
    files="`NAME_val_000000.bin`, `NAME_train_000001.bin` ..., two of train at least",
    cut="document",
    check=_check,
    min_shard_tokens=0,
    min_train_shards=2,
    load_lines=_load_lines,
)
