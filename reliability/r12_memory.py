"""R12: the memory of all processes together stays under `--memory`, whatever the input.

Each case is a real `tokenmill prepare` in a process of its own, whose tree (coordinator, fork
server, workers) is sampled: the sum of PSS, a page that is shared by two counting half for each.
What can only be held whole is refused with the memory that it needs; with exactly that it passes,
in no more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from reliability.scorecard import Check

ID = "R12"
PROMISE = "bounded memory"
MARK = "under --memory 1GB, or refused with the memory it needs and then under that"

# What is left of a small share shows a fault with a small input.
LIMIT = {"whole": ("1GB", 10**9, ()), "fast": ("650MB", 650 * 10**6, ("--workers", "1"))}
SAMPLE_SECONDS = 0.05
RUN_SECONDS = 900
SENTENCE = "the same words again and again, some of them twice "
FEW = 1000  # documents that a mixture takes again and again
HINT = re.compile(r"--memory (\d+)MB")


class Ran(NamedTuple):
    code: int
    peak: int
    said: str


def run_measured(arguments: list[str]) -> Ran:
    """A command of tokenmill, and the peak of its tree's memory."""
    said: list[bytes] = []
    command = [sys.executable, "-m", "tokenmill", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    peak, began = 0, time.monotonic()
    try:
        while process.poll() is None:
            look = time.monotonic()
            peak = max(peak, sum(map(_pss, _tree(process.pid))))
            said.append(process.stdout.read() or b"")
            if time.monotonic() - began > RUN_SECONDS:
                raise AssertionError(f"not done after {RUN_SECONDS} s")
            # Looking stops the process: a fifth of the time at most.
            time.sleep(max(SAMPLE_SECONDS, 4 * (time.monotonic() - look)))
    finally:
        process.kill()
        process.wait()
        said.append(process.stdout.read() or b"")
        process.stdout.close()
    return Ran(process.returncode, peak, b"".join(said).decode(errors="replace"))


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    members = [pid]
    for member in members:  # grows on the way
        try:
            for task in os.listdir(f"/proc/{member}/task"):
                with open(f"/proc/{member}/task/{task}/children") as file:
                    members += map(int, file.read().split())
        except OSError:
            continue  # it has ended
    return members


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


# --- inputs ----------------------------------------------------------------------------------


def words_of(size: int, seed: int) -> Iterator[bytes]:
    """About `size` bytes of text in a few thousand words, in blocks of whole words."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(97, 123, (4000, 8), np.uint8)
    words = [bytes(row[: 2 + i % 7]).decode() for i, row in enumerate(letters)]
    words += ["naïve", "東京", "😀", 'say "so"', "back\\slash", "tab\t", "line\n"]
    table = np.array(words, object)
    choices = rng.integers(0, len(table), (12, 100_000))
    blocks = [(" ".join(table[choice]) + " ").encode() for choice in choices]
    done = 0
    while done < size:  # to choose every word anew would take longer than to encode it
        block = blocks[rng.integers(len(blocks))]
        yield block
        done += len(block)


def different_words(count: int, seed: int) -> Iterator[bytes]:
    """So many words of nine letters, of which hardly two are the same."""
    rng = np.random.default_rng(seed)
    while count > 0:
        letters = rng.integers(97, 123, (min(count, 400_000), 10), np.uint8)
        letters[:, 9] = 32
        yield letters.tobytes()
        count -= len(letters)


def as_json(blocks: Iterator[bytes], *, ascii_only: bool) -> Iterator[bytes]:
    """One line that holds the text, and a field before and behind it."""
    yield b'{"id": 7, "text": "'
    for block in blocks:
        yield json.dumps(block.decode(), ensure_ascii=ascii_only).encode()[1:-1]
    yield b'", "tags": ["a", null]}\n'


def write(path: Path, blocks: Iterator[bytes]) -> Path:
    with open(path, "wb") as file:
        if path.suffix == ".zst":
            with pyarrow.CompressedOutputStream(file, "zstd") as stream:
                for block in blocks:
                    stream.write(block)
        else:
            for block in blocks:
                file.write(block)
    return path


def write_parquet(path: Path, texts: list[str], times: int, **options: Any) -> Path:
    """The texts so many times in one row group, never all of them in memory."""
    values = pyarrow.array(texts, pyarrow.large_string())
    table = pyarrow.table({"text": pyarrow.chunked_array([values] * times)})
    pyarrow.parquet.write_table(
        table, path, row_group_size=1 << 40, use_dictionary=False, compression="zstd", **options
    )
    return path


# --- cases -----------------------------------------------------------------------------------


class Case(NamedTuple):
    """`make` writes the input into a folder; `documents` is what must come out of it.

    Two cases of the same `tokens` must give the same token file. `refused`: what the refusal
    must name, besides the memory; '' where the input must pass at once.
    """

    name: str
    make: Callable[[Path, Check], Path]
    documents: Callable[[Check], int]
    tokens: str = ""
    refused: str = ""
    options: tuple[str, ...] = ()
    mixed: bool = False  # what `make` writes is a mix.toml


def _document(folder: Path, check: Check) -> Path:
    return write(folder / "a.txt", words_of(check.scale(300, 100) * 10**6, check.seed))


def _line(folder: Path, check: Check) -> Path:
    blocks = words_of(check.scale(300, 100) * 10**6, check.seed)
    return write(folder / "a.jsonl", as_json(blocks, ascii_only=False))


def _escaped_line(folder: Path, check: Check) -> Path:
    blocks = words_of(check.scale(300, 100) * 10**6, check.seed)
    return write(folder / "a.jsonl", as_json(blocks, ascii_only=True))


def _tiny(folder: Path, check: Check) -> Path:
    count = check.scale(2_000_000, 100_000)
    lines = (
        "".join(f'{{"text":"t{i + k}"}}\n' for k in range(1000)) for i in range(0, count, 1000)
    )
    return write(folder / "a.jsonl", (line.encode() for line in lines))


def _bomb(check: Check) -> tuple[bytes, int]:
    """A block of text, and how often: over 1 GB."""
    return SENTENCE.encode() * 20_000, check.scale(1050, 60)


def _text_bomb(folder: Path, check: Check) -> Path:
    block, times = _bomb(check)
    return write(folder / "a.txt.zst", (block for _ in range(times)))


def _line_bomb(folder: Path, check: Check) -> Path:
    block, _ = _bomb(check)
    blocks = (block for _ in range(check.scale(300, 60)))
    return write(folder / "a.jsonl.zst", as_json(blocks, ascii_only=True))


def _lines_bomb(folder: Path, check: Check) -> Path:
    line = json.dumps({"text": SENTENCE * 20}).encode() + b"\n"
    times = lines_count(check) // 1000
    return write(folder / "a.jsonl.zst", (line * 1000 for _ in range(times)))


def lines_count(check: Check) -> int:
    return check.scale(1020, 60) * 1000


def mixed_count(check: Check) -> int:
    """Documents, without their copies."""
    return lines_count(check) * 2 // 3 + FEW


def _mixture(folder: Path, check: Check) -> Path:
    """All documents but a third, and as many copies of a few others."""
    lines = _lines_bomb(folder, check)
    text = json.dumps({"text": SENTENCE}).encode() + b"\n"
    write(folder / "b.jsonl", iter([text * FEW]))
    taken = mixed_count(check) - FEW
    path = folder / "mix.toml"
    path.write_text(
        f'unit = "documents"\n'
        f'[source.many]\ninputs = ["{lines.name}"]\ndocuments = {taken}\n'
        f'[source.few]\ninputs = ["b.jsonl"]\ndocuments = {lines_count(check) - taken}\n'
        f"max_epochs = 400\n"
    )
    return path


def _empty_bomb(folder: Path, check: Check) -> Path:
    """Documents of no text at all: 14 bytes of JSON, 0 of text."""
    block = b'{"text": ""}\n' * 80_000
    return write(folder / "a.jsonl.zst", (block for _ in range(check.scale(250, 4))))


def _newlines(folder: Path, check: Check) -> Path:
    """A separator that overlaps itself, nothing but separators."""
    return write(folder / "a.txt", (b"\n" * 10**6 for _ in range(check.scale(100, 20))))


def _different(folder: Path, check: Check) -> Path:
    return write(folder / "a.txt", different_words(different_count(check), check.seed))


def different_count(check: Check) -> int:
    return check.scale(100_000_000, 10_000_000)


def _value(folder: Path, check: Check) -> Path:
    text = b"".join(words_of(check.scale(300, 120) * 10**6, check.seed)).decode()
    return write_parquet(folder / "a.parquet", ["a b", text, "c d"], 1)


def _group(folder: Path, check: Check) -> Path:
    return write_parquet(folder / "a.parquet", [SENTENCE * 60] * 1000, check.scale(700, 50))


def _page(folder: Path, check: Check) -> Path:
    """A row group in a single page."""
    return write_parquet(
        folder / "a.parquet", [SENTENCE * 60] * 1000, check.scale(400, 50),
        data_page_size=(1 << 31) - 1, write_batch_size=1 << 30,
        max_rows_per_page=1 << 30,
    )  # fmt: skip


def _batch(folder: Path, check: Check) -> Path:
    """A record batch that has to be decompressed whole."""
    values = pyarrow.array([SENTENCE * 60] * 1000 * check.scale(200, 60), pyarrow.large_string())
    records = pyarrow.record_batch({"text": values})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(folder / "a.arrow", records.schema, options=options) as writer:
        writer.write_batch(records)
    return folder / "a.arrow"


def _unbroken(folder: Path, check: Check) -> Path:
    return write(folder / "a.txt", (b"x" * 10**6 for _ in range(check.scale(40, 30))))


def _long(folder: Path, check: Check) -> Path:
    return write(folder / "a.txt", words_of(check.scale(60, 30) * 10**6, check.seed))


LINE = r"row 0 \(line 1\): its line is .* bytes"
CASES = [
    Case("document .txt", _document, lambda c: 1, tokens="document"),
    Case("document .jsonl", _line, lambda c: 1, tokens="document", refused=LINE),
    Case("document .jsonl escaped", _escaped_line, lambda c: 1, tokens="document", refused=LINE),
    Case("tiny documents", _tiny, lambda c: c.scale(2_000_000, 100_000)),
    Case("bomb .txt.zst", _text_bomb, lambda c: 1, tokens="bomb"),
    Case("bomb .jsonl.zst one line", _line_bomb, lambda c: 1, refused=LINE),
    Case("bomb .jsonl.zst lines", _lines_bomb, lines_count, tokens="lines"),
    # The same document again and again: in any order the same tokens.
    Case(
        "shuffled lines",
        _lines_bomb,
        lines_count,
        tokens="lines",
        options=("--shuffle",),
    ),
    Case("shuffled document", _document, lambda c: 1, tokens="document", options=("--shuffle",)),
    Case(
        "shuffled tiny documents",
        _tiny,
        lambda c: c.scale(2_000_000, 100_000),
        options=("--shuffle",),
    ),
    Case("mixed lines", _mixture, mixed_count, options=("--shuffle",), mixed=True),
    Case("bomb of empty documents", _empty_bomb, lambda c: c.scale(250, 4) * 80_000),
    Case(
        "separators only",
        _newlines,
        lambda c: c.scale(100, 20) * 500_000,
        options=("--text-separator", "\\n\\n"),
    ),
    Case("different words", _different, lambda c: 1),
    Case("parquet row group", _group, lambda c: c.scale(700, 50) * 1000),
    Case("parquet value", _value, lambda c: 3, refused=r"row group 0: .*rows 0 to 2 .*bytes"),
    Case(
        "parquet page",
        _page,
        lambda c: c.scale(400, 50) * 1000,
        refused=r"row group 0: its page of rows 0 to \d+ is .* bytes",
    ),
    Case(
        "arrow record batch",
        _batch,
        lambda c: c.scale(200, 60) * 1000,
        refused=r"record batch 0: it is .* bytes",
    ),
    Case("no white space", _unbroken, lambda c: 1, refused=r"a\.txt: .*bytes"),
    Case(
        "--max-tokens",
        _long,
        lambda c: 1,
        tokens="long",
        refused=r"a\.txt: .*bytes",
        options=("--max-tokens", "1G"),
    ),
    Case("not --max-tokens", _long, lambda c: 1, tokens="long"),
]
FAST = {
    "document .txt", "document .jsonl", "different words", "parquet value", "shuffled lines",
    "shuffled document", "mixed lines",
}  # fmt: skip


def run(check: Check) -> str:
    peaks: dict[str, int] = {}
    digests: dict[str, tuple[str, str]] = {}
    refusals = 0
    for case in CASES:
        if not check.wants(case.name) or (check.fast and case.name not in FAST and not check.only):
            continue
        with check.case(case.name) as folder:
            peaks[case.name], refused, digest = _run_case(case, folder, check)
            refusals += refused
            other, same = digests.setdefault(case.tokens or case.name, (case.name, digest))
            if same != digest:
                raise AssertionError(f"other tokens than of {other}")
    if not peaks:
        return "nothing was measured"
    passed = {case.name for case in CASES if not case.refused}
    at_once = max((peak for name, peak in peaks.items() if name in passed), default=0)
    limit = LIMIT["fast" if check.fast else "whole"][0]
    words = f" ({different_count(check) / 1e6:.0f} M different words among them)"
    return (
        f"{len(peaks)} inputs; peak {at_once / 1e6:.0f} MB under --memory {limit}"
        f"{words if 'different words' in peaks else ''}; {refusals} refused by name and size, "
        "all done with the memory asked for, in less"
    )


def _run_case(case: Case, folder: Path, check: Check) -> tuple[int, bool, str]:
    """Peak, whether it was refused at first, and a digest of its tokens."""
    path = case.make(folder, check)
    limit, memory, more = LIMIT["fast" if check.fast else "whole"]
    out = folder / "out"
    named = ["--mix", str(path)] if case.mixed else [str(path)]
    command = ["prepare", *named, "-o", str(out), "--val", "none", "--quiet", *more]
    command += case.options
    ran = run_measured([*command, "--memory", limit])
    if ran.peak >= memory:
        raise AssertionError(f"peak {ran.peak / 1e6:.0f} MB, over {limit}: {ran.said[-500:]}")
    refused = ran.code == 2
    if refused != bool(case.refused):
        raise AssertionError(f"exit code {ran.code}: {ran.said[-1000:]}")
    if refused:
        asked = HINT.search(ran.said)
        if not re.search(case.refused, ran.said) or not asked:
            raise AssertionError(f"the refusal does not name it: {ran.said[-1000:]}")
        memory = int(asked[1]) * 10**6
        ran = run_measured([*command, "--memory", f"{asked[1]}MB"])
    if ran.code != 0 or not ran.peak < memory:
        raise AssertionError(
            f"with --memory {memory / 1e6:.0f}MB: exit code {ran.code}, peak "
            f"{ran.peak / 1e6:.0f} MB: {ran.said[-1000:]}"
        )
    manifest = json.loads((out / "manifest.json").read_bytes())
    expected = case.documents(check)
    if manifest["counts"]["documents"] != expected:
        raise AssertionError(f"{manifest['counts']['documents']} documents, not {expected}")
    with open(out / "train.bin", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    shutil.rmtree(out)
    return ran.peak, refused, digest
