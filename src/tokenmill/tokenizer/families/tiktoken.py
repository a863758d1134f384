"""`.tiktoken` files: tokens and their ranks. They do not say how text is split (`--pattern`)."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

from tokenmill.errors import EncoderError, UsageError, faults_become, first_line
from tokenmill.system.disk import as_file
from tokenmill.tokenizer.bundled import (
    ENCODINGS,
    PATTERN_ALIASES,
    PATTERNS,
    Encoding,
    bundled_ranks,
    read_vocabulary,
    write_ranks,
)
from tokenmill.tokenizer.families.base import MOST_IDS, Encode, Family
from tokenmill.tokenizer.families.tokenizer_json import END_NAMES
from tokenmill.tokenizer.proof.proven import judge_ranks
from tokenmill.tokenizer.proof.rules import RULE_SETS


class TiktokenFamily(Family):
    kind = "tiktoken"
    library = "tiktoken"
    speed = 10
    reference_factor = 60
    ranks_only = True

    def recognises(self, head: bytes) -> bool:
        fields = head.split(b"\n")[0].split()
        return len(fields) == 2 and fields[1].isdigit() and len(fields[0]) % 4 == 0

    def identify(self, path: Path, content: bytes, pattern: str) -> Encoding:
        sha256 = hashlib.sha256(content).hexdigest()
        known = next((e for e in ENCODINGS.values() if e.sha256 == sha256), None)
        chosen = _pattern_of(path, pattern, known)
        special = known.special_tokens if known and known.pattern == chosen else {}
        return encoding_of_ranks(path.name, path, content, chosen, special)

    def open_reference(self, encoding: Encoding) -> Encode:
        from tiktoken import Encoding as TiktokenEncoding

        try:
            opened = TiktokenEncoding(
                encoding.name,
                pat_str=encoding.pattern,
                mergeable_ranks=ranks_of(encoding),
                special_tokens={},
            )
        except ValueError as error:  # a pattern of the user's own
            raise EncoderError(
                f"--pattern: not a regular expression for tiktoken: {error}"
            ) from None
        return lambda text: opened.encode_to_numpy(text, disallowed_special=())

    def open_fast(self, encoding: Encoding, content: bytes) -> Any:
        from gigatoken import Tokenizer

        scheme = RULE_SETS[encoding.rules].scheme
        whole = not encoding.path and encoding.rank_hole < 0
        with as_file(content if whole else fill_holes(content), ".tiktoken") as path:
            return Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens={}).backend

    def token_bytes(self, encoding: Encoding) -> dict[int, bytes]:
        if not encoding.path:
            return _bundled_tokens(encoding.name)
        return {rank: token for token, rank in ranks_of(encoding).items()}


@functools.lru_cache(maxsize=1)
def _bundled_tokens(name: str) -> dict[int, bytes]:
    """The last one is kept: to make it takes longer (20 ms) than to inspect a document."""
    return {rank: token for token, rank in ranks_of(ENCODINGS[name]).items()}


def encoding_of_ranks(
    name: str, path: Path, content: bytes, pattern: str, special_tokens: dict[str, int]
) -> Encoding:
    ranks = parse_ranks(content, path)
    sha256 = hashlib.sha256(content).hexdigest()
    verdict = judge_ranks(ranks, pattern, sha256)
    return Encoding(
        name=name,
        sha256=sha256,
        path=os.path.abspath(path),
        pattern=pattern,
        special_tokens=special_tokens,
        vocab_size=max([*ranks.values(), *special_tokens.values()]) + 1,
        rules=verdict.rules,
        why_slow=verdict.why_slow,
        eot_candidates=tuple(name for name in END_NAMES if name in special_tokens),
        cuttable=pattern in PATTERNS.values(),
    )


def _pattern_of(path: Path, pattern: str, known: Encoding | None) -> str:
    """The regular expression that `--pattern` names or is."""
    names = ", ".join(PATTERNS)
    if not pattern and known is not None:
        return known.pattern
    if not pattern:
        raise UsageError(
            f"--tokenizer {path}: a .tiktoken file does not say how text is split into words",
            hint=f"name its pattern: --pattern {names}, or a regular expression",
        )
    name = PATTERN_ALIASES.get(pattern, pattern)
    if name in PATTERNS:
        return PATTERNS[name]
    if pattern.isidentifier():
        raise UsageError(f"--pattern {pattern}: unknown", hint=f"known are {names}")
    _try_pattern(pattern)
    return pattern


def _try_pattern(pattern: str) -> None:
    """An expression of the user's own: does it compile, and leave no letter out?"""
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)}
    probe = "Word's 123,  \n\n\té国 \u0301\x00!?_<|x|>\u2003👍 end\n"
    with faults_become(
        lambda e: UsageError(f"--pattern: tiktoken cannot use this expression: {first_line(e)}")
    ):
        codec = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        found = codec.decode_bytes(codec.encode_ordinary(probe))
    if found != probe.encode():
        raise UsageError(
            "--pattern: the expression does not cover every letter: tiktoken would leave text out",
            hint=r"end it with |\s+|. or the like, so that something always matches",
        )


def parse_ranks(content: bytes, where: Path) -> dict[bytes, int]:
    """Token bytes to rank. tiktoken and gigatoken load a cut or doubled line without an error."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        try:
            if not token or not rank.isdigit() or int(rank) >= MOST_IDS:
                raise ValueError("a token is empty, or a rank is not one")
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (binascii.Error, ValueError):
            raise UsageError(
                f"--tokenizer {where}: line {number} is not a token and a rank",
                hint="the file is damaged or cut short: download it again",
            ) from None
        if len(ranks) != number:
            raise UsageError(f"--tokenizer {where}: line {number} repeats a token")
    if not content.endswith(b"\n") or len(set(ranks.values())) != len(ranks):
        raise UsageError(
            f"--tokenizer {where}: cut short, or two tokens have one rank",
            hint="download the file again",
        )
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise UsageError(
            f"--tokenizer {where}: no rank for byte 0x{missing[0]:02x}: some text could not be "
            "encoded"
        )
    return ranks


def ranks_of(encoding: Encoding) -> dict[bytes, int]:
    if not encoding.path:
        return bundled_ranks(encoding.name)
    return parse_ranks(read_vocabulary(encoding), Path(encoding.path))


def fill_holes(content: bytes) -> bytes:
    """Ranks in order and without a gap, as gigatoken needs them (p50k leaves one out): the gaps get
    tokens of two bytes that no UTF-8 text holds, so that they are never used."""
    ranks = parse_ranks(content, Path("the vocabulary"))
    fillers = (
        bytes((lead, other)) for lead in range(255, 247, -1) for other in range(255, 127, -1)
    )
    unused = (token for token in fillers if token not in ranks)
    holes = sorted(set(range(max(ranks.values()))).difference(ranks.values()))
    return write_ranks(ranks | {next(unused): hole for hole in holes})
