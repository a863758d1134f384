"""Arrow IPC, streams and files: the same documents as parquet, and no damage that kills."""

from __future__ import annotations

from pathlib import Path

from support import reference
from support.commands import token_bytes
from support.inputs import write_arrow, write_jsonl, write_parquet

import tokenmill


def test_all_inputs_of_the_same_rows_give_the_same_tokens(texts: list[str], tmp_path: Path) -> None:
    paths = [
        write_parquet(tmp_path / "a.parquet", texts),
        write_arrow(tmp_path / "b.arrow", texts),
        write_arrow(tmp_path / "c.arrow", texts, form="file", compression="zstd", rows=33),
        write_jsonl(tmp_path / "d.jsonl", texts),
        write_jsonl(tmp_path / "e.jsonl.gz", texts),
        write_jsonl(tmp_path / "f.jsonl.zst", texts),
    ]
    expected = reference.nanogpt(paths[1:2], fraction=0)
    for path in paths:
        out = tmp_path / f"out-{path.name}"
        tokenmill.prepare(path, out, val="none", workers=2)
        assert token_bytes(out) == expected, path.name
    # by the hash of their rows, the same documents are held out as of parquet
    splits = []
    for path in paths[:3]:
        tokenmill.prepare(path, tmp_path / f"val-{path.name}", val=0.1, workers=2)
        splits.append(token_bytes(tmp_path / f"val-{path.name}"))
    assert splits[0] == splits[1] == splits[2] == reference.nanogpt(paths[1:2], fraction=0.1)
    assert splits[0]["val.bin"]
