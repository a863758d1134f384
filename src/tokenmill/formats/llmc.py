"""llm.c: shards with a header of 256 int32, the separator before each document.

https://github.com/karpathy/llm.c, dev/data/data_common.py: magic 20240520 version 1 with uint16
(gpt-2), magic 20240801 version 7 with uint32 (llama-3). Val is shard 000000, train starts at
000001. The C loader seeks with an int, so a file must stay below 2 GiB.
"""

from __future__ import annotations

import numpy as np

from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings

HEADER_WORDS = 256
VERSIONS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def _header(layout: Layout, tokens: int) -> bytes:
    words = np.zeros(HEADER_WORDS, "<i4")
    words[:2] = VERSIONS[layout.dtype]
    words[2] = tokens
    return words.tobytes()


SHARD_LINES = (
    "import numpy as np",
    f"tokens = np.memmap({{path!r}}, dtype=np.{{dtype}}, mode='r', offset={HEADER_WORDS * 4})",
)


def _load_lines(settings: PlanSettings, layout: Layout, folder: str, file: str) -> list[str]:
    globs = base.split_globs(settings, folder, file)
    options = [f'{flag} "{path}"' for flag, path in zip(("-i", "-j"), globs, strict=True) if path]
    shown = [f"# llm.c: {' '.join(options)}"]
    shown += base.lines(*SHARD_LINES)(settings, layout, folder, file)
    if layout.dtype != "uint16":
        shown.append("# uint32 (header version 7): read by train_llama3.py, not by train_gpt2")
    return shown


LLMC = base.Format(
    name="llmc",
    trainer="llm.c",
    files="`NAME_val_000000.bin`, `NAME_train_000001.bin` ...",
    eot="prepend",
    cut="exact",
    val="shard",
    header=_header,
    file_name=base.file_names("{name}_{split}_{number:06d}.bin", first_of_train=1),
    trainer_glob=base.globs("{name}_{split}_*.bin"),
    max_shard_tokens=lambda layout: (2**31 - 1 - HEADER_WORDS * 4) // base.itemsize(layout),
    # dataloader.h wants num_processes * B * T + 1 tokens in every shard; 0.5M is its usual batch.
    min_shard_tokens=2**19 + 1,
    needs_val=True,
    load_lines=_load_lines,
)
