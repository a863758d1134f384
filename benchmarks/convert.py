"""How fast `import` and `export` are: `python benchmarks/convert.py --tokens 500M`.

Token files are made up (ids by chance, documents of some 700 tokens as in FineWeb), since neither
command looks at what tokens say. Bytes a second are those of the bare tokens that were read.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import tokenmill
from tokenmill.amounts import parse_count
from tokenmill.formats import FORMATS

EOT = 50256


def make_up(folder: Path, tokens: int) -> None:
    rng = np.random.default_rng(0)
    with open(folder / "train.bin", "wb") as file:
        for start in range(0, tokens, 1 << 24):
            ids = rng.integers(0, EOT, min(1 << 24, tokens - start), np.uint16)
            ids[rng.random(len(ids)) < 1 / 700] = EOT
            if start + len(ids) == tokens:
                ids[-1] = EOT
            ids.astype("<u2").tofile(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="100M")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    arguments = parser.parse_args()
    tokens = parse_count(arguments.tokens)
    root = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        source = root / "source"
        source.mkdir()
        make_up(source, tokens)
        began = time.monotonic()
        tokenmill.adopt(source, format="nanogpt", quiet=True)
        show("import nanogpt", tokens, began)
        for format in arguments.formats.split(","):
            began = time.monotonic()
            tokenmill.export(source, root / "out", format=format, quiet=True)
            show(f"export {format}", tokens, began)
            shutil.rmtree(root / "out")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"peak memory of the process, mapped files included: {peak:,.0f} MB")
    finally:
        shutil.rmtree(root)


def show(what: str, tokens: int, began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{what:22} {seconds:6.1f} s {2 * tokens / seconds / 1e6:6.0f} MB/s", flush=True)


if __name__ == "__main__":
    main()
