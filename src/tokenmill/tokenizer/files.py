"""Tokenizers that a user brings: `.tiktoken` ranks, tokenizer.json, SentencePiece models.

The content of a file decides which family it belongs to, not its name. Its SHA-256 goes into the
plan and is compared whenever the file is opened later. Nothing is guessed: a .tiktoken file needs
its pattern named, and the separator is taken from a file only if the file leaves one choice.
"""

from __future__ import annotations

import os
from pathlib import Path

from tokenmill.errors import UsageError
from tokenmill.tokenizer.bundled import ENCODINGS, Encoding, get_encoding
from tokenmill.tokenizer.families import FAMILIES, family_of

MODEL_FILES = ("tokenizer.json", "tokenizer.model")


def find_encoding(tokenizer: str, pattern: str = "") -> Encoding:
    """A bundled encoding by name, or the one in a file or in a model's folder."""
    if tokenizer in ENCODINGS:
        if pattern:
            raise UsageError(f"--pattern: {tokenizer} has its own", hint="leave --pattern out")
        return get_encoding(tokenizer)
    path = Path(tokenizer)
    if not os.path.exists(path):
        if tokenizer.startswith((".", "/", "~")) or path.suffix in (".json", ".model", ".tiktoken"):
            raise UsageError(f"--tokenizer {tokenizer}: no such file or folder")
        return get_encoding(tokenizer)  # which says what there is
    if path.is_dir():
        path = _model_file(path)
    if not path.is_file():  # /dev/zero and pipes have no end
        raise UsageError(f"--tokenizer {path}: not a regular file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--tokenizer {path}: cannot be read: {error.strerror}") from None
    return _encoding_of(path, content, pattern)


def _model_file(folder: Path) -> Path:
    for name in MODEL_FILES:
        if (folder / name).is_file():
            return folder / name
    ranks = sorted(folder.glob("*.tiktoken"))
    if len(ranks) == 1:
        return ranks[0]
    raise UsageError(
        f"--tokenizer {folder}: no {' or '.join(MODEL_FILES)} in this folder",
        hint="name the file itself",
    )


def _encoding_of(path: Path, content: bytes, pattern: str) -> Encoding:
    if content.startswith(b"version https://git-lfs.github.com/spec/"):
        raise UsageError(
            f"--tokenizer {path}: a git-LFS pointer, not the file itself",
            hint="run `git lfs pull` in that repository, or download the file",
        )
    head = content[:200].removeprefix(b"\xef\xbb\xbf").lstrip()
    family = next(family for family in FAMILIES if family.recognises(head))
    if pattern and not family.ranks_only:
        raise UsageError(
            f"--pattern: {path.name} says itself how text is split",
            hint="--pattern is for .tiktoken files only",
        )
    return family.identify(path, content, pattern)


def special_id(encoding: Encoding, text: str, option: str) -> int:
    """The id that `--eot-token` or `--bos-token` names: a token of the file, or a number."""
    if text in encoding.special_tokens:
        return encoding.special_tokens[text]
    known = family_of(encoding).extra_tokens(encoding)
    if text in known:
        return known[text]
    if text.isascii() and text.isdigit():
        number = int(text)
        # Ranks alone say nothing about special ids: one behind them is what everybody uses.
        limit = encoding.vocab_size + (1 << 16) * (not encoding.special_tokens)
        if number < limit:
            return number
        raise UsageError(
            f"{option} {text}: {encoding.name} has {encoding.vocab_size} ids (0 to "
            f"{encoding.vocab_size - 1})"
        )
    raise UsageError(
        f"{option} {text!r}: {encoding.name} has no such token", hint=_choice(encoding)
    )


def settled_id(encoding: Encoding, candidates: tuple[str, ...], option: str) -> int:
    """The id that the file itself settles, or an error that lists the candidates."""
    if len(candidates) == 1:
        return encoding.special_tokens[candidates[0]]
    kind = "an end-of-text" if option == "--eot-token" else "a begin-of-text"
    what = f"does not define {kind} token"
    if candidates:
        what = f"has several candidates for {kind} token ({', '.join(candidates)})"
    usual = f"usual for documents: {option} {candidates[-1]!r}; " if candidates else ""
    raise UsageError(f"{encoding.name} {what}; pass {option}", hint=usual + _choice(encoding))


def _choice(encoding: Encoding) -> str:
    if not encoding.special_tokens:
        return (
            f"the file names no special tokens: give an id, such as {encoding.vocab_size} (the "
            "first one behind its ranks)"
        )
    shown = [f"{token!r} ({number})" for token, number in encoding.special_tokens.items()]
    more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
    return f"its special tokens are: {', '.join(shown[:12])}{more}; or give an id"
