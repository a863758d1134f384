"""`draw(seed, folder)`: one tokenizer file that the libraries and tokenmill accept."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliability.farm import ranks_files, sentencepiece_files
from reliability.farm.json_files import draw_json
from reliability.farm.opening import find
from reliability.farm.oracle import load
from tokenmill.errors import UsageError
from tokenmill.tokenizer.bundled import Encoding

ATTEMPTS = 200


@dataclass
class Drawn:
    """A file, what it is, and the strings of its special and added tokens."""

    seed: int
    kind: str  # tokenizer.json, sentencepiece or tiktoken
    line: str
    path: Path
    encoding: Encoding
    pattern: str = ""
    tokens: list[str] = field(default_factory=list)
    redrawn: list[str] = field(default_factory=list)  # why earlier attempts were refused


class RefusedError(Exception):
    """The library or tokenmill does not accept what was drawn."""


def draw(seed: int, folder: Path) -> Drawn:
    """The same file for the same seed, whatever was drawn before."""
    rng = random.Random(f"farm {seed}")
    make = rng.choices((_json, _sentencepiece, _ranks), (0.66, 0.16, 0.18))[0]
    redrawn: list[str] = []
    for _ in range(ATTEMPTS):
        try:
            drawn = make(rng, seed, folder)
        except RefusedError as error:
            redrawn.append(str(error))
            continue
        drawn.redrawn = redrawn
        return drawn
    raise RuntimeError(f"seed {seed}: nothing usable in {ATTEMPTS} attempts: {redrawn[-1]}")


def from_json(seed: int, line: str, file: dict[str, Any], folder: Path) -> Drawn:
    """A drawn tokenizer.json, with the ids that the library gives to the added tokens."""
    path = folder / f"{seed}.json"
    with _refusals("library"):
        tokenizer = load(json.dumps(file))
        for token in file["added_tokens"]:
            number = tokenizer.token_to_id(token["content"])
            token["id"] = token["id"] if number is None else number
        content = json.dumps(file, ensure_ascii=False)
        load(content)
        if tokenizer.normalizer is not None:
            _refuse_empty(file["added_tokens"], tokenizer.normalizer)
    path.write_text(content)
    tokens = [t["content"] for t in file["added_tokens"] if t["content"]]
    with _refusals("tokenmill"):
        return Drawn(seed, "tokenizer.json", line, path, find(path), tokens=tokens)


def _refuse_empty(added: list[dict[str, Any]], normalizer: Any) -> None:
    """The library searches for an empty string without end, and takes all memory."""
    for token in added:
        if token["normalized"] and not normalizer.normalize_str(token["content"]):
            raise ValueError("a token that the normalizer empties")


def _json(rng: random.Random, seed: int, folder: Path) -> Drawn:
    line, file = draw_json(rng)
    return from_json(seed, line, file, folder)


def from_model(seed: int, line: str, content: bytes, folder: Path) -> Drawn:
    """A SentencePiece model."""
    import sentencepiece

    path = folder / f"{seed}.model"
    path.write_bytes(content)
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokens = [
        model.id_to_piece(i)
        for i in range(model.vocab_size())
        if model.is_control(i) or model.is_unknown(i)
    ]
    with _refusals("tokenmill"):
        return Drawn(seed, "sentencepiece", line, path, find(path), tokens=tokens)


def _sentencepiece(rng: random.Random, seed: int, folder: Path) -> Drawn:
    options = sentencepiece_files.draw_options(rng)
    with _refusals("library"):
        content = sentencepiece_files.train(rng.randrange(2), options)
    drawn = from_model(seed, sentencepiece_files.describe(options), content, folder)
    drawn.tokens += options.get("user_defined_symbols", ())
    return drawn


def from_ranks(seed: int, line: str, ranks: ranks_files.Ranks, pattern: str, folder: Path) -> Drawn:
    """A .tiktoken file under one pattern."""
    path = folder / f"{seed}.tiktoken"
    path.write_bytes(ranks_files.as_file(ranks))
    with _refusals("tokenmill"):
        encoding = find(path, pattern)
    long = [t.decode() for t in ranks if len(t) > 3 and t.isascii()][-40:]
    return Drawn(seed, "tiktoken", f"{pattern[:30]}: {line}", path, encoding, pattern, long)


def _ranks(rng: random.Random, seed: int, folder: Path) -> Drawn:
    line, ranks = ranks_files.draw_ranks(rng)
    own = rng.random() < 0.15
    pattern = rng.choice(ranks_files.OWN_PATTERNS if own else ranks_files.PATTERN_NAMES)
    return from_ranks(seed, line, ranks, pattern, folder)


@contextlib.contextmanager
def _refusals(who: str) -> Iterator[None]:
    """A refusal, also a panic of a library, becomes one kind of error."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except UsageError as error:
        raise RefusedError(f"{who}: {error}") from None
    except BaseException as error:
        if who == "tokenmill":  # only a UsageError is a refusal
            raise
        raise RefusedError(f"{who}: {type(error).__name__}: {error}") from None
