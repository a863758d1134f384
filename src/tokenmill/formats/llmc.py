"""llm.c: shards with a header of 256 int32, the separator before each document.

https://github.com/karpathy/llm.c, dev/data/data_common.py: magic 20240520 version 1 with uint16
(gpt-2), magic 20240801 version 7 with uint32 (llama-3). Val is shard 000000, train starts at
000001. The C loader seeks with an int, so a file must stay below 2 GiB.
"""

from __future__ import annotations

import glob

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.formats.base import Format

HEADER_WORDS = 256
VERSIONS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def shard_header(settings: PlanSettings, tokens: int) -> bytes:
    words = np.zeros(HEADER_WORDS, "<i4")
    words[:2] = VERSIONS[settings.dtype]
    words[2] = tokens
    return words.tobytes()


def shard_name(settings: PlanSettings, split: str, number: int, of: int) -> str:
    return f"{settings.name}_{split}_{number + (split == 'train'):06d}.bin"


def max_shard_tokens(settings: PlanSettings) -> int:
    return int((2**31 - 1 - HEADER_WORDS * 4) // np.dtype(settings.dtype).itemsize)


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    lines = [
        f'# llm.c: -i "{directory}/{settings.name}_train_*.bin" '
        f'-j "{directory}/{settings.name}_val_*.bin"',
        "import numpy as np",
        f"tokens = np.memmap({directory + '/' + file!r}, "
        f"dtype=np.{settings.dtype}, mode='r', offset=1024)",
    ]
    if settings.dtype != "uint16":
        lines.append("# uint32 (header version 7): read by train_llama3.py, not by train_gpt2")
    return lines


def shard_globs(settings: PlanSettings) -> tuple[str, ...]:
    return tuple(f"{glob.escape(settings.name)}_{split}_*.bin" for split in ("train", "val"))


LLMC = Format(
    name="llmc",
    trainer="llm.c",
    files="`NAME_val_000000.bin`, `NAME_train_000001.bin` ...",
    eot="prepend",
    cut="exact",
    val="shard",
    sharded=True,
    header_bytes=lambda settings: HEADER_WORDS * 4,
    header=shard_header,
    file_name=shard_name,
    trainer_glob=shard_globs,
    max_shard_tokens=max_shard_tokens,
    # dataloader.h wants num_processes * B * T + 1 tokens in every shard; 0.5M is its usual batch.
    min_shard_tokens=2**19 + 1,
    load_lines=_load_lines,
)
