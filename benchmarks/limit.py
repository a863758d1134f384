"""How far `tokenmill prepare` is from the limit: reading the text and encoding it, nothing else.

The limit is a bare loop in one process (`bare_loop.py`): read the text column, encode, throw the
ids away. Both are measured in processor seconds of the whole process tree, start-up included, in
turns; the best of several rounds counts. Processor time hardly changes when the machine is busy
with something else, so that ratios can be compared between machines and days.

    python benchmarks/limit.py [--corpus DIR_OR_FILES ...] [--mb 1200] [--only english,mixed,...]
    python benchmarks/limit.py --only english --workers 1,2,4,8
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from execute import cost
from run import (
    HERE,
    MB,
    SAMPLE,
    corpus_files,
    english_table,
    read_corpus_file,
    resize,
    text_lengths,
    warm,
    write_input,
)


def write_lines(table: pa.Table, path: Path, pack: Callable[[bytes], bytes] = bytes) -> None:
    lines = (json.dumps({"text": text}) + "\n" for text in table["text"].to_pylist() if text)
    path.write_bytes(pack("".join(lines).encode()))


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)


def mixed_table(corpus: list[Path]) -> pa.Table:
    return pa.concat_tables([read_corpus_file(path).select(["text"]) for path in corpus])


def make_input(name: str, corpus: list[Path], folder: Path, size: int) -> tuple[Path, int]:
    """The file to read, and the bytes of text in it."""
    table = mixed_table(corpus) if name == "mixed" else english_table(corpus).select(["text"])
    table = resize(table, size)
    path = folder / FILES[name]
    if path.suffix == ".parquet":
        write_input(table, path)
    elif name.startswith("jsonl"):
        packs = {".gz": lambda data: gzip.compress(data, 6), ".zst": pa.Codec("zstd").compress}
        write_lines(table, path, packs.get(path.suffix, bytes))
    elif name == "arrow":
        write_arrow(table, path)
    elif name == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        path.write_text("\n\n".join(text for text in table["text"].to_pylist() if text))
    return path, int(text_lengths(table).sum())


FILES = {
    "english": "english.parquet",
    "mixed": "mixed.parquet",
    "jsonl": "english.jsonl",
    "jsonl.gz": "english.jsonl.gz",
    "jsonl.zst": "english.jsonl.zst",
    "arrow": "english.arrow",
    "csv": "english.csv",
    "text": "english.txt",
}


def measure(path: Path, workers: list[int], rounds: int, folder: Path) -> dict[str, float]:
    """The best processor seconds of the bare loop and of `prepare` with so many workers."""
    out = folder / "out"
    prepare = [sys.executable, "-m", "tokenmill", "prepare", str(path), "-o", str(out), "--quiet"]
    prepare += ["--val", "none"]
    contenders = {"bare loop": [sys.executable, str(HERE / "peers" / "bare_loop.py"), str(path)]}
    for count in workers:
        contenders[f"{count} workers"] = [*prepare, "--workers", str(count)]
    best: dict[str, float] = {}
    warm([path])
    for _ in range(rounds):
        for name, command in contenders.items():
            seconds = cost(command).processor
            best[name] = min(seconds, best.get(name, seconds))
            shutil.rmtree(out, ignore_errors=True)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", type=Path, default=[SAMPLE])
    parser.add_argument("--mb", type=int, default=140, help="of text in each input")
    parser.add_argument("--only", default=",".join(FILES), help="of " + ", ".join(FILES))
    parser.add_argument("--workers", default="1,2", help="such as 1,2,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where inputs and outputs go")
    options = parser.parse_args()
    workers = [int(count) for count in options.workers.split(",")]
    columns = "".join(f"{f'{count} workers':>22}" for count in workers)
    print("processor seconds, and the ratio to the bare loop")
    print(f"{'input':12}{'MB':>7}{'bare':>8}{columns}")
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        folder = Path(name)
        for kind in options.only.split(","):
            path, size = make_input(kind, corpus_files(options.corpus), folder, options.mb * MB)
            best = measure(path, workers, options.rounds, folder)
            bare = best.pop("bare loop")
            told = "".join(f"{f'{s:.2f} s  {s / bare:.2f} x':>22}" for s in best.values())
            print(f"{kind:12}{size / MB:>7.0f}{bare:>8.2f}{told}", flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
