"""What it costs to take a tenth of a source: text that is encoded, and processor time.

    python benchmarks/mixture_part.py [--megabytes 200] [--share 0.1] [--workers 2]

The same mixture twice, in turns: as it is, and with every document encoded. Both give the same
tokens. The marks: less than a fifth of the text is encoded for a tenth of the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from execute import cost
from shuffle import write_inputs

MARK = 0.2
TOKENS_PER_BYTE = 0.3  # of the bundled sample


def run(folder: Path, output: Path, workers: int, part_bytes: int) -> tuple[float, float]:
    """Processor seconds, and the share of the text that was encoded."""
    os.environ["TOKENMILL_PART_BYTES"] = str(part_bytes)
    took = cost(
        [sys.executable, "-m", "tokenmill", "prepare", "--mix", str(folder / "mix.toml"), "-o",
         str(output), "--shuffle", "--val", "none", "--workers", str(workers), "--quiet"]
    )  # fmt: skip
    manifest = json.loads((output / "manifest.json").read_bytes())
    encoded = json.loads((output / "run.json").read_bytes())["encoded_bytes"]
    shutil.rmtree(output)
    return took.processor, encoded / manifest["counts"]["text_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        write_inputs(folder / "in", wanted.megabytes)
        tokens = int(wanted.megabytes * 1_000_000 * TOKENS_PER_BYTE * wanted.share)
        (folder / "mix.toml").write_text(
            f"[source.web]\ninputs = ['in/*.jsonl']\ntokens = {tokens}\n"
        )
        part, share = run(folder, folder / "part", wanted.workers, 1)
        whole, _ = run(folder, folder / "whole", wanted.workers, 1 << 60)
    print(f"encoded: {100 * share:.1f} % of the text (mark {100 * MARK:.0f} %)")
    print(f"processor: {part:.1f} s, {whole:.1f} s with all encoded: {part / whole:.2f}")
    sys.exit(int(share >= MARK))


if __name__ == "__main__":
    main()
