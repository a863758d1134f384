"""Measure tokenmill beside the ways people make token files today.

Every contender is a process of its own, timed from its start to its end, imports included,
because that is what a user waits for. See README.md in this folder for what is compared.

    python benchmarks/run.py [--corpus DIR_OR_FILES ...] [--only english|all|scaling|text]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from execute import execute

HERE = Path(__file__).resolve().parent
SAMPLE = HERE.parent / "sample"
MB = 10**6
ENGLISH_BYTES = 140 * MB
LEAST_BYTES = 140 * MB  # of text; a real corpus brings more than the bundled sample
SCALE_BYTES = 40 * MB
SCALES = (1, 4, 16)
TEXT_BYTES = 300 * MB
SHARD_NAME = "fineweb"
LLMC_HEADER_BYTES = 1024
SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Options:
    """What every run needs to know."""

    work: Path
    ranks: Path
    workers: int
    repeats: int
    slow_repeats: int
    shard_tokens: int
    timeout: float


@dataclass(frozen=True)
class Workload:
    """Input files and the bytes of text in them (what MB/s is about, not the parquet's size)."""

    name: str
    files: list[Path]
    text_bytes: int


@dataclass(frozen=True)
class Contender:
    """One way to make token files; `output` says which tokenmill run it is compared with."""

    name: str
    output: str
    command: Callable[[Options, list[str], str], list[str]]
    slow: bool = False


@dataclass
class Run:
    """One measured process."""

    workload: str
    text_bytes: int
    contender: str
    seconds: float
    peak_bytes: int
    timed: bool
    tokens: int = 0
    report: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    error: str = ""


def tokenmill(output: str) -> Contender:
    """tokenmill itself, writing one format."""

    def command(options: Options, inputs: list[str], out: str) -> list[str]:
        head = [sys.executable, "-m", "tokenmill", "prepare", *inputs, "-o", out, "--overwrite"]
        settings = ["--format", output, "--tokenizer", "gpt2", "--workers", str(options.workers)]
        return [*head, *settings, *shard_options(options, output)]

    return Contender(f"tokenmill-{output}", output, command)


def tokenmill_text(workers: int) -> Contender:
    """tokenmill on one text file, by so many workers."""

    def command(options: Options, inputs: list[str], out: str) -> list[str]:
        head = [sys.executable, "-m", "tokenmill", "prepare", *inputs, "-o", out, "--overwrite"]
        return [*head, "--workers", str(workers), "--val", "none"]

    return Contender(f"tokenmill-{workers}-workers", "text", command)


def peer(name: str, script: str, output: str, *extra: str, slow: bool = False) -> Contender:
    """A script of `peers/`."""

    def command(options: Options, inputs: list[str], out: str) -> list[str]:
        head = [sys.executable, str(HERE / "peers" / script), *inputs, "-o", out, *extra]
        settings = ["--workers", str(options.workers), "--ranks", str(options.ranks)]
        return [*head, *settings, *shard_options(options, output)]

    return Contender(name, output, command, slow)


def shard_options(options: Options, output: str) -> list[str]:
    """Small shards, so that several are cut and compared; size does not change llm.c's speed."""
    if output != "llmc":
        return []
    return ["--name", SHARD_NAME, "--shard-tokens", str(options.shard_tokens)]


CONTENDERS = {
    contender.name: contender
    for contender in (
        tokenmill("nanogpt"),
        tokenmill("llmc"),
        peer("gigatoken-arrow", "gigatoken_by_hand.py", "nanogpt", "--reader", "arrow"),
        peer("gigatoken-own", "gigatoken_by_hand.py", "nanogpt", "--reader", "own"),
        peer("llm.c", "llmc_fineweb.py", "llmc", slow=True),
        peer("nanoGPT", "nanogpt_prepare.py", "nanogpt", slow=True),
        tokenmill_text(1),
        tokenmill_text(2),
    )
}
DEFAULT_CONTENDERS = {
    "english": [name for name, contender in CONTENDERS.items() if contender.output != "text"],
    "all": ["tokenmill-nanogpt", "gigatoken-arrow", "gigatoken-own"],
    "scaling": ["tokenmill-nanogpt"],
    "text": ["tokenmill-1-workers", "tokenmill-2-workers"],
}


def corpus_files(given: list[Path]) -> list[Path]:
    """The parquet and JSONL files of the corpus, folders searched one level deep."""
    found: list[Path] = []
    for path in given:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [item for item in inside if item.suffix in (".parquet", ".jsonl")]
    if not found:
        raise SystemExit(f"no .parquet or .jsonl file in {', '.join(map(str, given))}")
    return found


def read_corpus_file(path: Path) -> pa.Table:
    """One corpus file with all its columns; of JSONL the text only."""
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with open(path, encoding="utf-8") as lines:
        return pa.table({"text": [json.loads(line)["text"] for line in lines if line.strip()]})


def english_table(corpus: list[Path]) -> pa.Table:
    """The rows of all files named `en_*`; where there are none, the rows whose language is "en".

    Only the columns that every file has: the peers cannot read a mixture.
    """
    named = [path for path in corpus if path.name.startswith("en_")]
    tables = [read_corpus_file(path) for path in named or corpus]
    shared = set.intersection(*(set(table.column_names) for table in tables))
    common = [name for name in tables[0].column_names if name in shared]
    table = pa.concat_tables([t.select(common) for t in tables], promote_options="permissive")
    if not named and "language" in common:
        table = table.filter(pc.equal(table["language"], "en"))
    if not text_lengths(table).sum():
        raise SystemExit("the corpus has no English: no file en_*, no row with the language en")
    return table


def text_lengths(table: pa.Table) -> np.ndarray:
    """Bytes of each row's text."""
    return np.asarray(pc.fill_null(pc.binary_length(table["text"]), 0), dtype=np.int64)


def resize(table: pa.Table, wanted: int) -> pa.Table:
    """Repeat or thin out the rows until they hold just over `wanted` bytes of text.

    What is less than one whole copy is drawn from all over the table (seeded, in order), so
    that the mixture of sources stays the same.
    """
    lengths = text_lengths(table)
    copies, rest = divmod(wanted, int(lengths.sum()))
    drawn = np.random.default_rng(0).permutation(len(lengths))
    drawn = drawn[: int(np.searchsorted(np.cumsum(lengths[drawn]), rest)) + 1]
    return pa.concat_tables([*[table] * copies, table.take(np.sort(drawn))])


def write_input(table: pa.Table, path: Path) -> int:
    """Write parquet as FineWeb has it (snappy, groups of 1000 rows); give the bytes of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy", row_group_size=1000)
    return int(text_lengths(table).sum())


def make_english(corpus: list[Path], work: Path) -> list[Workload]:
    """All English in one file, repeated or cut to --english-mb."""
    path = work / "english" / "english.parquet"
    size = write_input(resize(english_table(corpus), ENGLISH_BYTES), path)
    return [Workload("english", [path], size)]


def make_all(corpus: list[Path], work: Path) -> list[Workload]:
    """Every corpus file twice; a small corpus is repeated within its files."""
    tables = {path: read_corpus_file(path) for path in corpus}
    total = sum(int(text_lengths(table).sum()) for table in tables.values())
    repeat = max(1, -(-LEAST_BYTES // (2 * total)))
    files, size = [], 0
    for number in range(2):
        for index, (path, table) in enumerate(tables.items()):
            target = work / "all" / f"{number}_{index:03d}_{path.stem}.parquet"
            size += write_input(pa.concat_tables([table] * repeat), target)
            files.append(target)
    return [Workload("all", files, size)]


def make_scaling(corpus: list[Path], work: Path) -> list[Workload]:
    """The same English file 1, 4 and 16 times: real copies, not links, read as so many files."""
    files = [work / "scaling" / f"part_{index:02d}.parquet" for index in range(max(SCALES))]
    size = write_input(resize(english_table(corpus), SCALE_BYTES), files[0])
    for path in files[1:]:
        shutil.copyfile(files[0], path)
    return [Workload(f"{scale}x", files[:scale], size * scale) for scale in SCALES]


def make_text(corpus: list[Path], work: Path) -> list[Workload]:
    """One text file, one document: all English end to end, 300 MB of it."""
    table = resize(english_table(corpus), TEXT_BYTES)
    path = work / "text" / "english.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n\n".join(text for text in table["text"].to_pylist() if text).encode()
    path.write_bytes(content)
    return [Workload("text", [path], len(content))]


MAKERS = {"english": make_english, "all": make_all, "scaling": make_scaling, "text": make_text}


def warm(files: Iterable[Path]) -> None:
    """Bring the inputs into the page cache and let what the last run wrote reach the disk."""
    for path in files:
        with open(path, "rb") as file:
            while file.read(1 << 22):
                pass
    os.sync()


def last_line(path: Path) -> str:
    """The last line of a log: a peer's report, or the message of an error."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def measure(workload: Workload, contender: Contender, options: Options, sample: bool) -> Run:
    """One run into a fresh folder, which is looked at and removed, untimed."""
    out = options.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    warm(workload.files)
    command = contender.command(options, [str(path) for path in workload.files], str(out))
    sample_seconds = SAMPLE_SECONDS if sample else 0.0
    code, seconds, peak = execute(command, options.work, options.timeout, sample_seconds)
    timed = not sample or contender.slow
    run = Run(workload.name, workload.text_bytes, contender.name, seconds, peak, timed)
    if code != 0:
        why = "timed out" if seconds >= options.timeout else last_line(options.work / "stderr")
        run.error = f"exit code {code}: {why}"
    else:
        header = LLMC_HEADER_BYTES if contender.output == "llmc" else 0
        files = sorted(out.glob("*.bin"))
        run.tokens = sum((path.stat().st_size - header) // 2 for path in files)
        if contender.output == "llmc":
            run.digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
        if contender.name.startswith("tokenmill"):
            record = json.loads((out / "run.json").read_text())
            run.report = {key: record[key] for key in ("seconds_milling", "seconds_starting")}
        else:
            run.report = json.loads(last_line(options.work / "stdout"))
    shutil.rmtree(out, ignore_errors=True)
    return run


def measure_all(
    workloads: list[Workload], contenders: list[Contender], options: Options
) -> list[Run]:
    """All runs, interleaved, so that a slow minute of the machine does not hit one contender.

    The first round measures memory and is not timed, but for the slow ones, where it does not
    matter.
    """
    runs = []
    for number in range(max(options.repeats + 1, options.slow_repeats)):
        for workload in workloads:
            for contender in contenders:
                if number >= (options.slow_repeats if contender.slow else options.repeats + 1):
                    continue
                run = measure(workload, contender, options, sample=number == 0)
                memory = f", {run.peak_bytes / MB:.0f} MB" if run.peak_bytes else ""
                note = (
                    run.error or f"{run.seconds:.2f} s{memory}{'' if run.timed else ' (untimed)'}"
                )
                print(f"{workload.name} {contender.name} #{number + 1}: {note}", file=sys.stderr)
                runs.append(run)
    return runs


def good(runs: list[Run], workload: str, contender: str) -> list[Run]:
    """The timed runs that succeeded, fastest first."""
    key = (workload, contender, "", True)
    ours = [run for run in runs if (run.workload, run.contender, run.error, run.timed) == key]
    return sorted(ours, key=lambda run: run.seconds)


def row(workload: Workload, contender: Contender, runs: list[Run]) -> list[str]:
    """One line of the table: the best time, the highest memory."""
    mine = good(runs, workload.name, contender.name)
    if not mine:
        return [workload.name, contender.name, "failed", "", "", "", "", ""]
    best, median = mine[0].seconds, mine[len(mine) // 2].seconds
    base = good(runs, workload.name, f"tokenmill-{contender.output}")
    ratio = f"{best / base[0].seconds:.2f}" if base else "-"
    speed = f"{workload.text_bytes / MB / best:.1f}"
    key = (workload.name, contender.name)
    peaks = [run.peak_bytes for run in runs if (run.workload, run.contender) == key]
    memory = f"{max(peaks) / MB:.0f}"
    numbers = [f"{best:.2f}", f"{median:.2f}", speed, ratio, memory, f"{mine[0].tokens:,}"]
    return [workload.name, contender.name, *numbers]


def print_table(rows: list[list[str]]) -> None:
    """A Markdown table that can also be read as it is."""
    head = ["input", "contender", "best s", "median s", "MB/s", "to tokenmill", "peak MB", "tokens"]
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    for line in [head, ["-" * width for width in widths], *rows]:
        words = map(str.ljust, line[:2], widths[:2])
        numbers = map(str.rjust, line[2:], widths[2:])
        print("| " + " | ".join([*words, *numbers]) + " |")


def same_bytes(runs: list[Run], workload: str) -> list[str]:
    """Compare every llm.c shard with the one llm.c's own way wrote; the files that differ."""
    ours, theirs = good(runs, workload, "tokenmill-llmc"), good(runs, workload, "llm.c")
    if not ours or not theirs:
        return []
    a, b = ours[0].digests, theirs[0].digests
    differ = [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]
    if not differ:
        print(f"{workload}: tokenmill's {len(a)} llm.c shards equal llm.c's own, byte for byte")
    return [f"{workload}: {name} is not the same in tokenmill's and llm.c's" for name in differ]


def print_workers(runs: list[Run]) -> None:
    """How many times as fast two workers are as one: the whole command, and what they do."""
    one, two = (good(runs, "text", f"tokenmill-{n}-workers") for n in (1, 2))
    if one and two:
        work = [
            min(run.report["seconds_milling"] - run.report["seconds_starting"] for run in side)
            for side in (one, two)
        ]
        print(
            f"text: 2 workers are {one[0].seconds / two[0].seconds:.2f} times as fast as 1 "
            f"({one[0].seconds:.2f} s, {two[0].seconds:.2f} s); after the start of the workers "
            f"{work[0] / work[1]:.2f} times ({work[0]:.2f} s, {work[1]:.2f} s)"
        )


def report(workloads: list[Workload], contenders: list[Contender], runs: list[Run]) -> list[str]:
    """Print the table; return what a reader must know before trusting it."""
    print()
    for workload in workloads:
        size = workload.text_bytes / MB
        print(f"{workload.name}: {size:.1f} MB of text in {len(workload.files)} file(s)")
    print()
    print_table([row(w, c, runs) for w in workloads for c in contenders])
    print()
    print_workers(runs)
    problems = [f"{run.workload} {run.contender}: {run.error}" for run in runs if run.error]
    for workload in workloads:
        counts = {run.tokens for run in runs if run.workload == workload.name and not run.error}
        if len(counts) > 1:
            problems.append(f"{workload.name}: the contenders' token counts differ")
        problems += same_bytes(runs, workload.name)
    for problem in problems:
        print(f"PROBLEM {problem}")
    return problems


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    versions = {}
    for name in ("tokenmill", "gigatoken", "tiktoken", "datasets", "pyarrow", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    system = {"system": platform.system(), "machine": platform.machine()}
    return {"cores": os.cpu_count(), **system, "python": platform.python_version(), **versions}


def parse_arguments() -> argparse.Namespace:
    """The options, explained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpus", nargs="+", type=Path, default=[SAMPLE], metavar="PATH")
    parser.add_argument("--only", choices=list(MAKERS), help="one of them; default: all")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--english-mb", type=int, default=140, help="text in the english input")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow-repeats", type=int, default=1, help="for llm.c and nanoGPT")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--shard-tokens", type=int, default=10**7, help="tokens, for llm.c's format"
    )
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    parser.add_argument("--ranks", type=Path, help="r50k_base.tiktoken; default: tokenmill's own")
    parser.add_argument("--work", type=Path, help="where the inputs and outputs go while it runs")
    parser.add_argument("--json", type=Path, help="write every single run here")
    return parser.parse_args()


def ranks_file(given: Path | None, work: Path) -> Path:
    """The peers' vocabulary: the file given, or the one that tokenmill carries."""
    if given is not None:
        return given.resolve()
    from tokenmill.tokenizer.bundled import bundled_ranks_file

    path = work / "r50k_base.tiktoken"
    path.write_bytes(bundled_ranks_file("r50k_base"))
    return path


def main() -> int:
    """Make the inputs, run the contenders, print the tables."""
    global ENGLISH_BYTES
    args = parse_arguments()
    ENGLISH_BYTES = args.english_mb * MB
    corpus = corpus_files(args.corpus)
    if args.work is not None:
        args.work.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-", dir=args.work) as folder:
        work = Path(folder)
        ranks = ranks_file(args.ranks, work)
        numbers = (args.workers, args.repeats, args.slow_repeats, args.shard_tokens, args.timeout)
        options = Options(work, ranks, *numbers)
        print(json.dumps(machine()))
        for name in [args.only] if args.only else list(MAKERS):
            chosen = [CONTENDERS[n] for n in args.contenders or DEFAULT_CONTENDERS[name]]
            workloads = MAKERS[name](corpus, work)
            done = measure_all(workloads, chosen, options)
            problems += report(workloads, chosen, done)
            runs += done
    if args.json is not None:
        found = {"machine": machine(), "runs": [asdict(run) for run in runs]}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
