"""Rows that are no text, planted among rows that are; and what must become of both."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from reliability.hostile_inputs import Form, Values

KEPT = 1 << 20  # bytes of a bad row in quarantine.jsonl

NO_TEXT: list[bytes] = [
    b"\xff\xfe\xfd",
    b"half a letter \xe6\x9d",
    b"a surrogate \xed\xa0\x80",
    b"an overlong zero \xc0\x80",
    b"beyond Unicode \xf5\x80\x80\x80",
    b"\x80",
]
NO_ROW: list[bytes] = [
    b"{broken",
    b'{"text": null}',
    b'{"text": 7}',
    b'{"text": 1.5e300}',
    b'{"text": true}',
    b'{"text": ["a", "b"]}',
    b'{"text": {"text": "inner"}}',
    b'{"other": "x"}',
    b"{}",
    b"[1, 2]",
    b"null",
    b'"text"',
    b'{"text": "bad letters \xff\xfe"}',
    b'{"text": "half a pair \\ud83d"}',
    b'{"text": "the wrong way round \\ude00\\ud83d"}',
    b'{"text": "a"} {"text": "b"}',
    b'{"text": "no end',
    b'{"text": "a",}',
    b'{"text": "a control letter \x01"}',
    b"\x00\x00\x00\x00",
    b'{"z": ' + b"[" * 50_000,
]


class Planted(NamedTuple):
    """Values of a file, some of them bad, by row."""

    values: Values
    bad: dict[int, bytes | None]

    @property
    def good(self) -> Values:
        return [value for row, value in enumerate(self.values) if row not in self.bad]


def plant(form: Form, values: Values, rng: random.Random, long: bool = False) -> Planted:
    """Bad rows at random places: at the ends too, side by side too."""
    if form.kind == "text" and form.separator is None:  # one document, and that is bad
        whole = list(values)
        place = rng.randrange(len(whole))
        whole[place] = rng.choice(NO_TEXT)
        return Planted(whole, {0: form.plain(whole)})
    rows = rng.sample(range(len(values)), rng.randint(1, 6))
    if rng.random() < 0.3:
        rows += [0, len(values) - 1]
    planted = list(values)
    bad: dict[int, bytes | None] = {}
    for row in rows:
        kinds: list[bytes | None] = [*(NO_ROW if form.kind == "jsonl" else NO_TEXT)]
        if form.kind in ("parquet", "arrow"):
            kinds.append(None)
        bad[row] = planted[row] = rng.choice(kinds)
    if long:
        content = b"{" + rng.randbytes(3 * KEPT // 2).replace(b"\n", b"\xff") + b"\xff"
        bad[rows[0]] = planted[rows[0]] = content
    return Planted(planted, dict(sorted(bad.items())))


def check_quarantine(out: Path, expected: dict[str, tuple[Form, Planted]]) -> None:
    """quarantine.jsonl names exactly the bad rows, in order, with their bytes."""
    path = out / "quarantine.jsonl"
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    wanted = [
        (name, row, content, form)
        for name, (form, planted) in expected.items()
        for row, content in planted.bad.items()
    ]
    found = [(record["source"], record["row"]) for record in records]
    assert found == [(name, row) for name, row, _, _ in wanted], f"set aside: {found}"
    for record, (_, row, content, form) in zip(records, wanted, strict=True):
        _check_record(record, row, content or b"", form.kind == "jsonl")
        assert (content is None) == record["reason"].startswith("null"), record["reason"]


def _check_record(record: dict[str, Any], row: int, content: bytes, has_line: bool) -> None:
    assert record["reason"], record
    assert record.get("line") == (row + 1 if has_line else None), record
    assert base64.b64decode(record["bytes"]) == content[:KEPT], record["reason"]
    assert record["length"] == len(content), record["length"]
    digest = hashlib.sha256(content).hexdigest() if len(content) > KEPT else None
    assert record.get("sha256") == digest, record["reason"]
