"""Text files: documents as `str.split` gives them, and cuts that no token notices."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.text import COMPRESS, cut_encoders, novel, small_ranges  # noqa: F401

import tokenmill as mill
from tokenmill.errors import BadRowError


@pytest.mark.usefixtures("small_ranges")
def test_a_giant_bad_document_is_set_aside_whole(texts: list[str], tmp_path: Path) -> None:
    giant = novel(texts, 4_000_000).encode()
    giant = giant[:3_000_000].decode(errors="ignore").encode() + b"\xff" + giant[3_000_000:]
    content = b"@@".join([b"first", giant, b"last"])
    options = {"text_separator": "@@", "val": "none", "start_method": "fork"}
    for suffix in ("", ".gz"):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(COMPRESS[suffix](content) if not suffix else gzip.compress(content, 1))
        at = giant.index(b"\xff")
        with pytest.raises(BadRowError, match=rf"document 1: not valid UTF-8 at byte {at} "):
            mill.prepare(path, tmp_path / f"o{suffix}", **options)
        result = mill.prepare(path, tmp_path / f"o{suffix}", on_bad_row="quarantine", **options)
        assert result.manifest.counts["quarantined"] == 1
        tokens = np.fromfile(tmp_path / f"o{suffix}" / "train.bin", np.uint16)
        assert reference.encoding("gpt2").decode(tokens.tolist()) == (
            "first<|endoftext|>last<|endoftext|>"
        )
        line = json.loads((tmp_path / f"o{suffix}" / "quarantine.jsonl").read_text())
        assert line["row"] == 1
        assert line["length"] == len(giant)
        assert line["sha256"] == hashlib.sha256(giant).hexdigest()
        assert base64.b64decode(line["bytes"]) == giant[: 1 << 20]
