"""build-nanogpt: `.npy` shards of uint16, the separator before each document.

https://github.com/karpathy/build-nanogpt, fineweb.py and train_gpt2.py: `np.load` of every file
whose name holds `train` or `val`, wherever; shard 0 is val. It casts to int32, so uint32 works as
well.
"""

from __future__ import annotations

import io

import numpy as np

from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings

NPY_HEADER_BYTES = 128  # what numpy writes before a one-dimensional array of any length


def npy_header(dtype: np.dtype[np.generic], count: int) -> bytes:
    """As `np.save` writes it, without the array."""
    out = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(out, described)
    header = out.getvalue()
    if len(header) != NPY_HEADER_BYTES:
        raise TokenmillError(
            f"numpy writes a header of {len(header)} bytes, not {NPY_HEADER_BYTES}"
        )
    return header


def _check(settings: PlanSettings, layout: Layout) -> None:
    for split, other in (("train", "val"), ("val", "train")):
        if split in layout.name:
            raise UsageError(
                f"--name {layout.name!r}: build-nanogpt takes every file whose name holds "
                f"{split!r} for {split}, so also the {other} shards",
                hint="give another --name",
            )


BUILD_NANOGPT = base.Format(
    name="build-nanogpt",
    trainer="build-nanogpt",
    files="`NAME_val_000000.npy`, `NAME_train_000001.npy` ...",
    eot="prepend",
    cut="exact",
    val="shard",
    check=_check,
    header=lambda layout, tokens: npy_header(base.stored_dtype(layout), tokens),
    file_name=base.file_names("{name}_{split}_{number:06d}.npy", first_of_train=1),
    trainer_glob=base.globs("{name}_{split}_*.npy"),
    needs_val=True,
    load_lines=base.lines(
        "# build-nanogpt's train_gpt2.py, class DataLoaderLite: data_root = {folder!r}",
        "import numpy as np",
        "tokens = np.load({path!r}, mmap_mode='r')",
    ),
)
