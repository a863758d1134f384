"""nanoGPT: `train.bin` and `val.bin`, a bare stream of uint16, the separator after each document.

https://github.com/karpathy/nanoGPT reads it with `np.memmap(..., dtype=np.uint16)` in train.py.
There is no header, so a vocabulary above 65,536 needs two lines of train.py changed.
"""

from __future__ import annotations

from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings


def _load_lines(settings: PlanSettings, layout: Layout, folder: str, file: str) -> list[str]:
    shown = base.lines(*base.MEMMAP_LINES)(settings, layout, folder, file)
    if layout.dtype != "uint16":
        shown += [
            "",
            f"# {settings.tokenizer} has {settings.vocab_size} ids: more than uint16 holds.",
            "# In nanoGPT's train.py, get_batch(), change the dtype of both memmaps:",
            f"#     np.memmap(..., dtype=np.{layout.dtype}, mode='r')",
            "# and where the model is made from scratch, the vocabulary:",
            f"#     model_args['vocab_size'] = {-(-settings.vocab_size // 64) * 64}",
        ]
    elif settings.vocab_size > 50304:
        shown += ["", f"# in nanoGPT's train.py set vocab_size >= {settings.vocab_size}"]
    return shown


NANOGPT = base.Format(
    name="nanogpt",
    trainer="nanoGPT",
    files="`train.bin`, `val.bin`",
    cut="exact",
    sharded=False,
    named=False,
    file_name=base.file_names("{split}.bin"),
    trainer_glob=base.globs("{split}.bin"),
    needs_val=True,
    load_lines=_load_lines,
)
