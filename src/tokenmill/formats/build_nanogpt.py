"""build-nanogpt: `.npy` shards of uint16, the separator before each document.

https://github.com/karpathy/build-nanogpt, fineweb.py and train_gpt2.py: `np.load` of every file
whose name holds `train` or `val`, wherever; shard 0 is val. It casts to int32, so uint32 works as
well.
"""

from __future__ import annotations

import glob
import io

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats.base import Format, stored_dtype

HEADER_BYTES = 128  # what numpy writes before a one-dimensional array of any length


def npy_header(dtype: np.dtype[np.generic], count: int) -> bytes:
    """As `np.save` writes it, without the array."""
    out = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(out, described)
    header = out.getvalue()
    if len(header) != HEADER_BYTES:
        raise TokenmillError(f"numpy writes a header of {len(header)} bytes, not {HEADER_BYTES}")
    return header


def _check(settings: PlanSettings) -> None:
    for split, other in (("train", "val"), ("val", "train")):
        if split in settings.name:
            raise UsageError(
                f"--name {settings.name!r}: build-nanogpt takes every file whose name holds "
                f"{split!r} for {split}, so also the {other} shards",
                hint="give another --name",
            )


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    return [
        f"# build-nanogpt's train_gpt2.py, class DataLoaderLite: data_root = {directory!r}",
        "import numpy as np",
        f"tokens = np.load({directory + '/' + file!r}, mmap_mode='r')",
    ]


BUILD_NANOGPT = Format(
    name="build-nanogpt",
    trainer="build-nanogpt",
    files="`NAME_val_000000.npy`, `NAME_train_000001.npy` ...",
    eot="prepend",
    cut="exact",
    val="shard",
    sharded=True,
    check=_check,
    header_bytes=lambda settings: HEADER_BYTES,
    header=lambda settings, tokens: npy_header(stored_dtype(settings), tokens),
    file_name=lambda settings, split, number, of: (
        f"{settings.name}_{split}_{number + (split == 'train'):06d}.npy"
    ),
    trainer_glob=lambda settings: tuple(
        f"{glob.escape(settings.name)}_{split}_*.npy" for split in ("train", "val")
    ),
    load_lines=_load_lines,
)
