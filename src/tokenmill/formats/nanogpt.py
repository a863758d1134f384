"""nanoGPT: `train.bin` and `val.bin`, a bare stream of uint16, the separator after each document.

https://github.com/karpathy/nanoGPT reads it with `np.memmap(..., dtype=np.uint16)` in train.py.
There is no header, so a vocabulary above 65,536 needs two lines of train.py changed.
"""

from __future__ import annotations

from tokenmill.config import PlanSettings
from tokenmill.formats.base import Format


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    lines = [
        "import numpy as np",
        f"tokens = np.memmap({directory + '/' + file!r}, dtype=np.{settings.dtype}, mode='r')",
    ]
    if settings.dtype != "uint16":
        lines += [
            "",
            f"# {settings.tokenizer} has {settings.vocab_size} ids: more than uint16 holds.",
            "# In nanoGPT's train.py, get_batch(), change the dtype of both memmaps:",
            f"#     np.memmap(..., dtype=np.{settings.dtype}, mode='r')",
            "# and where the model is made from scratch, the vocabulary:",
            f"#     model_args['vocab_size'] = {-(-settings.vocab_size // 64) * 64}",
        ]
    elif settings.vocab_size > 50304:
        lines += ["", f"# in nanoGPT's train.py set vocab_size >= {settings.vocab_size}"]
    return lines


NANOGPT = Format(
    name="nanogpt",
    trainer="nanoGPT",
    files="`train.bin`, `val.bin`",
    eot="append",
    cut="exact",
    val="0.0005",
    sharded=False,
    named=False,
    file_name=lambda settings, split, number, of: f"{split}.bin",
    trainer_glob=lambda settings: ("train.bin", "val.bin"),
    load_lines=_load_lines,
)
