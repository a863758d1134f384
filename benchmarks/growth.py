"""How costs grow: with many small files, and with the size of the input (`--sizes`).

Makes FILES inputs of some lines each, a unit for each line (units are 16 MB else), and prepares
them. Then it measures `plan`, the same `prepare` again (nothing is left to do), `verify`,
`inspect`, `status` and `open_dataset`, each in a process of its own. Marks: 5 s and 500 MB.

    python benchmarks/growth.py [--files 10000] [--units 10] [--format nanogpt] [--work DIR]
    python benchmarks/growth.py --profile plan

With `--sizes`, `prepare` reads a corpus once, 4 times, 16 times and so on. Its processor time after
the start-up should be in proportion to the text, and its memory should not grow.

    python benchmarks/growth.py --sizes 1,4,16,64 --mb 90 --corpus DIR_OR_FILES
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from execute import cost
from run import MB, SAMPLE, corpus_files, english_table, resize, write_input

MARK_SECONDS, MARK_MB = 5.0, 500
LINE_BYTES = 64
COMMAND = f"""
import sys
from tokenmill.cli.main import main
from tokenmill.inputs import segments
segments.SEGMENT_BYTES = {LINE_BYTES}
main()
"""
PROFILE = """
import atexit, cProfile, pstats, sys
profile = cProfile.Profile()
profile.enable()
def tell():
    profile.disable()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("cumtime").print_stats(60)
atexit.register(tell)
"""
OPEN = "import sys, tokenmill; print(tokenmill.open_dataset(sys.argv[1])['train'].tokens[-1])"


def make_inputs(folder: Path, files: int, units: int) -> None:
    for number in range(files):
        place = folder / f"{number // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        lines = (f'{{"text": "line {line} of {number}"}}' for line in range(units))
        content = "".join(f"{line:{LINE_BYTES - 1}}\n" for line in lines)
        (place / f"{number:07d}.jsonl").write_text(content)


def grow(folder: Path, corpus: list[Path], size: int, sizes: list[int], rounds: int) -> None:
    """The best processor seconds of each size, in turns, without those of one document."""
    table = english_table(corpus).select(["text"])
    write_input(table.slice(0, 1), folder / "one.parquet")
    whole = resize(table, size)
    inputs = {0: [folder / "one.parquet"]}
    for times in sizes:
        inputs[times] = [folder / f"{number:03d}.parquet" for number in range(times)]
    for path in inputs[max(sizes)]:
        write_input(whole, path)
    best: dict[int, float] = {}
    memory: dict[int, float] = {}
    for _ in range(rounds):
        for times, files in inputs.items():
            out = folder / "out"
            prepare = [sys.executable, "-m", "tokenmill", "prepare", *map(str, files), "--quiet"]
            _, processor, largest = cost([*prepare, "-o", str(out), "--val", "none"])
            best[times] = min(processor, best.get(times, processor))
            memory[times] = max(largest, memory.get(times, 0))
            shutil.rmtree(out)
    print(f"{'times':>5}{'MB':>8}{'processor':>12}{'per MB, of the first':>24}{'largest MB':>12}")
    first = (best[sizes[0]] - best[0]) / sizes[0]
    for times in sizes:
        share = (best[times] - best[0]) / times / first
        told = f"{times:>5}{times * size / MB:>8.0f}{best[times]:>12.2f}{share:>24.2f}"
        print(f"{told}{memory[times]:>12.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--units", type=int, default=1, help="in each file")
    parser.add_argument("--format", default="nanogpt")
    parser.add_argument("--work", type=Path, help="where inputs and outputs go")
    parser.add_argument("--profile", help="the step whose profile is printed: plan, resume ...")
    parser.add_argument("--sizes", help="such as 1,4,16,64: how often the corpus is read")
    parser.add_argument("--corpus", nargs="+", type=Path, default=[SAMPLE])
    parser.add_argument("--mb", type=int, default=90, help="of text in the corpus")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.sizes:
        sizes = [int(times) for times in options.sizes.split(",")]
        with tempfile.TemporaryDirectory(dir=options.work) as name:
            corpus = corpus_files(options.corpus)
            grow(Path(name), corpus, options.mb * MB, sizes, options.rounds)
        return
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        inputs, out = Path(name) / "in", Path(name) / "out"
        make_inputs(inputs, options.files, options.units)
        tokenmill = [sys.executable, "-c", COMMAND]
        settings = [str(inputs), "-o", str(out), "--format", options.format, "--val", "0.1"]
        prepare = ["prepare", *settings, "--quiet", "--workers", "0"]
        steps = {
            "plan": [*tokenmill, "plan", *settings],
            "prepare": [*tokenmill, *prepare],
            "resume": [*tokenmill, *prepare],
            "verify": [*tokenmill, "verify", str(out)],
            "inspect": [*tokenmill, "inspect", str(out)],
            "status": [*tokenmill, "status", str(out)],
            "open": [sys.executable, "-c", OPEN, str(out)],
        }
        print(f"{options.files:,} files, {options.units} units each")
        print(f"{'step':10}{'seconds':>10}{'processor':>12}{'MB':>8}")
        for step, command in steps.items():
            if step == options.profile:
                profiled = [*command[:2], PROFILE + command[2], *command[3:]]
                subprocess.run(profiled, stdout=subprocess.DEVNULL, check=True)
                continue
            seconds, processor, memory = cost(command)
            over = processor > MARK_SECONDS or memory > MARK_MB
            told = "  over the mark" if over and step != "prepare" else ""
            print(f"{step:10}{seconds:>10.2f}{processor:>12.2f}{memory:>8.0f}{told}", flush=True)


if __name__ == "__main__":
    main()
