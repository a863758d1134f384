"""`verify --deep`: what is stored is what the sources say, token by token, row by row."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill.output.manifest import Manifest, checksum_of_digests


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """Good rows, bad rows and empty ones in turn, in every kind of file."""
    folder = tmp_path_factory.mktemp("deep") / "in"
    (folder / "more").mkdir(parents=True)
    short = [text for text in texts if len(text) < 9000]
    holes: list[str | None] = [None if i % 9 == 4 else text for i, text in enumerate(short[:120])]
    write_parquet(folder / "a.parquet", holes, rows=13)
    write_jsonl(folder / "more/b.jsonl", short[60:])
    with open(folder / "more/b.jsonl", "ab") as file:
        file.write(b'{oops\n\n{"text": 7}\n{"text": "the end"}\n{"text": ""}\n')
    write_jsonl(folder / "more/c.jsonl.gz", short[30:60])
    return folder


def reseal(folder: Path) -> None:
    """Make every checksum right again, so that plain verification is content."""
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
    table = np.fromfile(folder / "index/pieces", "<u8").reshape(-1, 2)
    entries, position = [], 0
    for entry in manifest.files:
        content = (folder / entry.path).read_bytes()
        if entry.kind in ("units", "pieces"):
            if entry.kind == "pieces":
                content = table.tobytes()
                (folder / entry.path).write_bytes(content)
            digests = xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")
        else:
            rows, offset = table[position : position + entry.pieces], 0
            for row in rows:
                piece = content[offset : offset + int(row[0])]
                row[1] = xxhash.xxh3_64_intdigest(piece)
                offset += len(piece)
            position += entry.pieces
            digests = rows[:, 1].tobytes()
        entries.append(msgspec.structs.replace(entry, checksum=checksum_of_digests(digests)))
    sealed = msgspec.structs.replace(manifest, files=entries).sealed()
    (folder / "manifest.json").write_bytes(sealed.encode())
    assert tokenmill.verify(folder).ok, "the test must fool plain verification"


def write_tokens(folder: Path, split: str, start: int, tokens: np.ndarray) -> None:
    """Tokens of a split, wherever its files hold them."""
    manifest = Manifest.load(folder)
    first = next(s.first_token for s in manifest.splits if s.name == split)
    header = 1024 if manifest.plan["settings"]["format"] == "llmc" else 0
    dtype = "<u2" if manifest.plan["settings"]["dtype"] == "uint16" else "<u4"
    for file in manifest.files:
        if file.kind == "tokens" and file.split == split:
            stored = np.memmap(folder / file.path, dtype, "r+", offset=header)
            begin = file.first_token - first
            low, high = max(start, begin), min(start + len(tokens), begin + file.tokens)
            if low < high:
                stored[low - begin : high - begin] = tokens[low - start : high - start]
                stored.flush()


@pytest.fixture
def moved(sources: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A dataset and its inputs, of which the test may change or move either."""
    shutil.copytree(sources, tmp_path / "in")
    tokenmill.prepare(
        tmp_path / "in", tmp_path / "o", val="docs:9", on_bad_row="quarantine", workers=0
    )
    return tmp_path / "in", tmp_path / "o"
