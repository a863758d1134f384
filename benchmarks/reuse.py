"""What `--reuse` saves: processor time of a run that encodes everything, and of one that takes all
documents from an old dataset.

    python benchmarks/reuse.py --work /dev/shm --copies 3

The inputs are the shared corpus, as parquet and as JSON lines; each file --copies times. Fresh and
reusing runs take turns, --repeats times, with `--workers 0`: one process, whose processor time is
taken from start to end. Shown is the least of each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "data" / "corpus"


def make_inputs(folder: Path, kind: str, copies: int) -> list[Path]:
    folder.mkdir(parents=True)
    files = []
    for path in sorted(CORPUS.glob("*.parquet")):
        for copy in range(copies):
            target = folder / f"{path.stem}-{copy}.{kind}"
            if kind == "parquet":
                shutil.copy(path, target)
            else:
                texts = pyarrow.parquet.read_table(path, columns=["text"]).column(0).to_pylist()
                target.write_bytes(
                    b"".join(msgspec.json.encode({"text": t}) + b"\n" for t in texts)
                )
            files.append(target)
    return files


def seconds(*words: object) -> float:
    """Processor time of a command."""
    before = os.times()
    command = [sys.executable, "-m", "tokenmill", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before[2] - before[3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", default="gpt2")
    args = parser.parse_args()
    work = args.work / "tokenmill-reuse"
    shutil.rmtree(work, ignore_errors=True)
    try:
        for kind in ("parquet", "jsonl"):
            files = make_inputs(work / kind, kind, args.copies)
            job = ["prepare", *files, "--workers", 0, "--tokenizer", args.tokenizer]
            job += ["--memory", "4GB", "--val", "0.01", "-o"]
            old = work / f"{kind}-old"
            seconds(*job, old)
            fresh, reusing = [], []
            for _ in range(args.repeats):
                fresh.append(seconds(*job, work / "out"))
                shutil.rmtree(work / "out")
                reusing.append(seconds(*job, work / "out", "--reuse", old))
                shutil.rmtree(work / "out")
            manifest = msgspec.json.decode((old / "manifest.json").read_bytes())
            print(
                f"{kind}: {manifest['counts']['text_bytes'] / 1e6:.0f} MB of text: fresh "
                f"{min(fresh):.2f} s, reusing {min(reusing):.2f} s, "
                f"ratio {min(reusing) / min(fresh):.2f}",
                flush=True,
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
