"""R10: the ids are those of the reference, for any text, and decode to the text's bytes.

The twin is tiktoken as it defines its encodings itself: its patterns and special tokens, and the
hash it asks of the vocabulary; only the download is replaced by the bundled file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import tiktoken
import tiktoken_ext.openai_public as openai_public

import tokenmill
from reliability.corpus import documents
from reliability.scorecard import Check
from tokenmill.errors import EncoderError
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.bundled import ENCODINGS, bundled_ranks_file, get_encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.families.tiktoken import parse_ranks
from tokenmill.tokenizer.proof.gap_tables import GAP

ID = "R10"
PROMISE = "right tokens"
MARK = (
    "10,000 fuzzed documents per encoding, every code point, long runs, special strings, invalid "
    "rows around: the reference's ids, and they decode to the bytes"
)

FUZZED, PER_CASE = 10_000, 500
CONTEXTS = {"letters": "A{}'s ", "digits": "1{}234", "signs": "!{}\n\nx", "spaces": " {}"}
PER_BLOCK = 16  # code points a document
PER_POINTS_CASE = 1 << 16
PIECES = [
    "<|", "|>", "endoftext", "'s", "'S", "'LL", "’s", " ", "  ", "\n", "\n\n", "\r\n", "\t",
    "\u00a0", "\u3000", "\u2028", "\x85", "0", "123", "4567", "٣", "²", "the", "The", "THE", " a",
    "é", "e\u0301", "字", "かな", "한국", "ไทย", "हिन्दी", "👍🏽",
    "👩‍👩‍👧", "\u200d", "\ufeff", "\ufffd",
    "\x00", "\x7f", "...", "!!", "//", "_", "ﬀ", "ß", "İ", "ǅ", "ſ", "K", "def f(x):\n    return",
    "https://a.b/c?d=e&f", "\\u0041", "\u088f", "\ua7ce", "\U00016ea0", "\U000323b0", "\U0010ffff",
]  # fmt: skip
RUNS = [
    "a", " ", "\n", "0", "é", "字", "👍", "\u0301", "'s", "ab ", "\r\n", "<|endoftext|>", "!",
]  # fmt: skip
RUN_LENGTHS = (1, 2, 3, 15, 16, 17, 127, 128, 129, 1000, 4097, 20_000)
# Past what tiktoken's own regex can take: then the fast encoder serves, and says so.
GIANT_RUN = 1_000_000
BAD_ROWS = [b"\xff", b"ab\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"cut \xe2\x82"]


@functools.lru_cache(maxsize=2)
def twin(name: str) -> tiktoken.Encoding:
    """tiktoken's own definition; of gpt2 that of r50k_base, which it is under another name."""

    def bundled(url: str, expected_hash: str) -> dict[bytes, int]:
        content = bundled_ranks_file(Path(url).stem)
        assert hashlib.sha256(content).hexdigest() == expected_hash, f"{url}: another vocabulary"
        return parse_ranks(content, Path(url))

    before = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = bundled
    try:
        return tiktoken.Encoding(
            **getattr(openai_public, "r50k_base" if name == "gpt2" else name)()
        )
    finally:
        openai_public.load_tiktoken_bpe = before


@functools.lru_cache(maxsize=2)
def production(name: str) -> ExactEncoder:
    """The encoder as a worker opens it."""
    encoding = get_encoding(name)
    return ExactEncoder(encoding, "auto")


def compare(name: str, texts: Sequence[str]) -> None:
    """Ids equal the twin's, document by document, and decode to the document's bytes."""
    contents = [text.encode() for text in texts]
    ids, offsets = production(name).encode(from_bytes(contents))
    assert len(offsets) == len(texts) + 1, f"{len(offsets) - 1} documents of {len(texts)}"
    expected = twin(name).encode_ordinary_batch(list(texts), num_threads=1)
    for index, text in enumerate(texts):
        found = ids[offsets[index] : offsets[index + 1]].tolist()
        assert found == expected[index], (
            f"document {index}, {text[:200]!r}: {found[:20]}, should be {expected[index][:20]}"
        )
        assert twin(name).decode_bytes(found) == contents[index], f"{index}: {text[:200]!r}"


def fuzzed(rng: random.Random, count: int, specials: Sequence[str]) -> list[str]:
    """Texts of awkward parts: pieces, any code point, real words, special strings, cut up."""
    pieces = [*PIECES, *specials]
    words = documents(50, rng.random())
    return [_fuzz(rng, pieces, words) for _ in range(count)]


def _fuzz(rng: random.Random, pieces: list[str], words: list[str]) -> str:
    parts = []
    for _ in range(rng.choice((0, 1, 1, 2, 5, 20, 80))):
        kind = rng.random()
        if kind < 0.6:
            parts.append(rng.choice(pieces))
        elif kind < 0.75:
            parts.append(_any_point(rng))
        elif kind < 0.85:
            parts.append(rng.choice(pieces) * rng.randint(2, 9))
        else:
            parts.append(rng.choice(words)[: rng.randint(0, 200)])
    text = "".join(parts)
    if rng.random() < 0.2:  # cut anywhere, also inside a special string
        text = text[rng.randint(0, len(text)) :]
    return text


def _any_point(rng: random.Random) -> str:
    low, high = rng.choice(((0, 0x250), (0x250, 0xD800), (0xE000, 0x33500), (0x33500, 0x110000)))
    return chr(rng.randrange(low, high))


def points_of(block: int) -> list[str]:
    """The code points of one case, 65,536 but for the surrogates, which are no text."""
    first = block * PER_POINTS_CASE
    return [chr(c) for c in range(first, first + PER_POINTS_CASE) if not 0xD800 <= c <= 0xDFFF]


def code_points(name: str, context: str, block: int, step: int) -> None:
    points = points_of(block)
    form = CONTEXTS[context]
    starts = range(0, len(points), PER_BLOCK * step)
    compare(name, ["".join(form.format(c) for c in points[i : i + PER_BLOCK]) for i in starts])
    # A block with a code point of the gap went to the reference whole: its neighbours, alone.
    low, high = block * PER_POINTS_CASE, (block + 1) * PER_POINTS_CASE
    near = [c + d for first, last in GAP for c in (first, last) for d in (-16, -1, 0, 1, 16)]
    alone = [form.format(chr(c)) for c in near if low <= c < high and not 0xD800 <= c <= 0xDFFF]
    compare(name, alone)


def runs(name: str, rng: random.Random) -> None:
    texts = [
        part * length for part in RUNS for length in RUN_LENGTHS if len(part) * length < 50_000
    ]
    texts += [f"x{text}y" for text in texts]
    rng.shuffle(texts)
    compare(name, texts)


def giant(name: str) -> None:
    """Where tiktoken itself gives up the fast encoder serves; bytes in, bytes out."""
    encoder = production(name)
    for part in (" ", "a", "\n", "字"):
        content = (part * (GIANT_RUN // len(part.encode())) + "x").encode()
        try:
            ids, _ = encoder.encode(from_bytes([content]))
        except EncoderError as error:
            raise AssertionError(f"{GIANT_RUN:,} of {part!r}: {error.message}") from None
        assert twin(name).decode_bytes(ids.tolist()) == content, f"{GIANT_RUN:,} of {part!r}"


def specials(name: str) -> None:
    """A special token's string in a text is text: no special id, wherever it stands."""
    strings = sorted({s for e in ENCODINGS.values() for s in e.special_tokens})
    texts = [
        before + string + behind
        for string in strings
        for before in ("", " ", "x", "\n", "<|", *strings)
        for behind in ("", " ", "x", "\n", "|>", *strings)
    ]
    texts += [s[:cut] + s[cut:].upper() for s in strings for cut in range(len(s))]
    compare(name, texts)
    ids, _ = production(name).encode(from_bytes([text.encode() for text in texts]))
    special_ids = set(ENCODINGS[name].special_tokens.values())
    assert not special_ids & set(ids.tolist()), "a special id came out of a text"


def whole_path(name: str, rng: random.Random, folder: Path) -> None:
    """prepare itself: parquet and JSON lines with rows that are no text between the documents."""
    texts = fuzzed(rng, 400, list(ENCODINGS[name].special_tokens))
    rows: list[bytes] = []
    lines: list[bytes] = []
    for text in texts:
        if rng.random() < 0.3:
            bad = rng.choice(BAD_ROWS)
            rows.append(bad)
            lines.append(rng.choice((b'{"text": "' + bad + b'"}', b'{"text": "\\ud800"}', b"{")))
        rows.append(text.encode())
        lines.append(json.dumps({"text": text}, ensure_ascii=rng.random() < 0.5).encode())
    table = pyarrow.table({"text": pyarrow.array(rows, pyarrow.binary())})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=37)
    (folder / "b.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    result = tokenmill.prepare(
        [folder / "a.parquet", folder / "b.jsonl"], folder / "o", tokenizer=name, val="none",
        workers=0, on_bad_row="quarantine", quiet=True,
    )  # fmt: skip
    bad_count = 2 * (len(rows) - len(texts))
    assert result.manifest.counts["quarantined"] == bad_count, result.manifest.counts
    dtype: Any = "<u2" if ENCODINGS[name].vocab_size <= 1 << 16 else "<u4"
    eot = twin(name).eot_token
    encoded = twin(name).encode_ordinary_batch(texts * 2, num_threads=1)
    expected = np.array([i for ids in encoded for i in (*ids, eot)], dtype)
    found = np.fromfile(folder / "o" / "train.bin", dtype)
    assert np.array_equal(found, expected), "train.bin is not what the twin writes"


def run(check: Check) -> str:
    blocks = 0x110000 // PER_POINTS_CASE
    names: list[str] = []
    for name in ENCODINGS:
        names += [f"{name} fuzz {i}" for i in range(check.scale(FUZZED // PER_CASE, 1))]
        # Fast: every eighth block of the planes that hold characters, one context an encoding.
        contexts = list(CONTEXTS)
        if check.fast:
            contexts = [contexts[list(ENCODINGS).index(name) % len(contexts)]]
        names += [
            f"{name} {context} {block}"
            for context in contexts
            for block in (range(4) if check.fast else range(blocks))
        ]
        names += [f"{name} {what} 0" for what in ("runs", "giant", "specials", "path")]

    def one(case: str, folder: Path) -> None:
        name, what, number = case.split()
        rng = check.rng(case)
        if what == "fuzz":
            compare(name, fuzzed(rng, PER_CASE, list(ENCODINGS[name].special_tokens)))
        elif what in CONTEXTS:
            code_points(name, what, int(number), check.scale(1, 8))
        elif what == "runs":
            runs(name, rng)
        elif what == "giant":
            giant(name)
        elif what == "specials":
            specials(name)
        else:
            whole_path(name, rng, folder)

    check.each(names, one)
    fuzz = sum(" fuzz " in case for case in names) * PER_CASE // len(ENCODINGS)
    points = sum(len(points_of(b)) for b in range(blocks)) if not check.fast else 0
    covered = (
        f"{points:,} code points in {len(CONTEXTS)} contexts" if points else "some code points"
    )
    return (
        f"{fuzz:,} fuzzed documents in each of {len(ENCODINGS)} encodings, {covered}: "
        f"{'all' if not check.failures else 'NOT all'} equal to tiktoken {tiktoken.__version__}"
    )
