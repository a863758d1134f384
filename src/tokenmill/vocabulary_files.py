"""Tokenizers that a user brings: `.tiktoken` ranks, tokenizer.json, SentencePiece models.

What a file is, its content tells, not its name. Its SHA-256 goes into the plan, and whoever opens
it later compares. Nothing is guessed: a .tiktoken file needs its pattern named, and the separator
is taken from a file only where the file leaves one choice.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import xxhash

from tokenmill.errors import EncoderError, UsageError, faults_become, first_line
from tokenmill.tokenizer import (
    ENCODINGS,
    PATTERN_ALIASES,
    PATTERNS,
    Encoding,
    Pattern,
    bundled_ranks,
    bundled_ranks_file,
    get_encoding,
)

MODEL_FILES = ("tokenizer.json", "tokenizer.model")

# Names under which models end a text. One of them in a file settles its separator.
END_NAMES = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]",
)  # fmt: skip
BEGIN_NAMES = (
    "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]",
)  # fmt: skip

# Normalizer and pre-tokenizer of tokenizer.json files for which we have measured that a text may
# be cut between words and on which code points gigatoken and tokenizers differ (docs/log.md).
# The key is the xxh3 of their canonical JSON; a test recomputes all of them.
KNOWN_RULES = {
    "278e2c6ccb57a639": "gpt2",
    "b9b1bffc817c459d": "qwen2",
    "fe60a0c8856dc0f4": "deepseek",
    "4b4b1aea7deb49f8": "llama3",
}


def find_encoding(tokenizer: str, pattern: str = "") -> Encoding:
    """A bundled encoding by name, or the one in a file or in a model's folder."""
    if tokenizer in ENCODINGS:
        if pattern:
            raise UsageError(f"--pattern: {tokenizer} has its own", hint="leave --pattern out")
        return get_encoding(tokenizer)
    path = Path(tokenizer)
    if not os.path.exists(path):
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
    if head.startswith(b"{"):
        _refuse_pattern(path, pattern)
        return _json_encoding(path, content)
    if _looks_like_ranks(head):
        return _ranks_encoding(path, content, pattern)
    _refuse_pattern(path, pattern)
    return _sentencepiece_encoding(path, content)


def _refuse_pattern(path: Path, pattern: str) -> None:
    if pattern:
        raise UsageError(
            f"--pattern: {path.name} says itself how text is split",
            hint="--pattern is for .tiktoken files only",
        )


def read_vocabulary(encoding: Encoding) -> bytes:
    """The vocabulary's file, which must still be the one that was planned with."""
    if not encoding.path:
        return bundled_ranks_file(encoding.name)
    try:
        content = Path(encoding.path).read_bytes()
    except OSError as error:
        raise EncoderError(f"{encoding.path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != encoding.sha256:
        raise EncoderError(
            f"{encoding.path}: is not the file this job was planned with (its SHA-256 differs)",
            hint="restore the file, or start anew with --overwrite",
        )
    return content


# --- .tiktoken -------------------------------------------------------------------------------


def _looks_like_ranks(head: bytes) -> bool:
    fields = head.split(b"\n")[0].split()
    return len(fields) == 2 and fields[1].isdigit() and len(fields[0]) % 4 == 0


def _ranks_encoding(path: Path, content: bytes, pattern: str) -> Encoding:
    sha256 = hashlib.sha256(content).hexdigest()
    known = next((e for e in ENCODINGS.values() if e.sha256 == sha256), None)
    chosen = _pattern_of(path, pattern, known)
    ranks = parse_ranks(content, path)
    size = max(ranks.values()) + 1
    same = known is not None and known.pattern == chosen.regex
    return Encoding(
        name=path.name,
        sha256=sha256,
        path=os.path.abspath(path),
        pattern=chosen.regex,
        special_tokens=known.special_tokens if known is not None and same else {},
        vocab_size=known.vocab_size if known is not None and same else size,
        gigatoken_scheme=chosen.gigatoken_scheme,
        eot_candidates=("<|endoftext|>",) if same else (),
        cuttable=chosen.gigatoken_scheme is not None,
        known_rules=chosen.gigatoken_scheme is not None,
    )


def _pattern_of(path: Path, pattern: str, known: Encoding | None) -> Pattern:
    names = ", ".join(PATTERNS)
    if not pattern and known is not None:
        return Pattern(known.pattern, known.gigatoken_scheme)
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
    return Pattern(pattern, None)


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
    """Token bytes to rank. tiktoken and gigatoken load a cut or doubled line without a word."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (binascii.Error, ValueError):
            raise UsageError(
                f"--tokenizer {where}: line {number} is not a token and a rank",
                hint="the file is damaged or cut short: fetch it again",
            ) from None
        if len(ranks) != number:
            raise UsageError(f"--tokenizer {where}: line {number} repeats a token")
    if not content.endswith(b"\n") or len(set(ranks.values())) != len(ranks):
        raise UsageError(
            f"--tokenizer {where}: cut short, or two tokens have one rank",
            hint="fetch the file again",
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


# --- tokenizer.json --------------------------------------------------------------------------


def _json_encoding(path: Path, content: bytes) -> Encoding:
    try:
        parsed = json.loads(content)
        model, added = parsed["model"], parsed.get("added_tokens") or []
        ids = _vocabulary_ids(model)
        added_ids = {str(token["content"]): int(token["id"]) for token in added}
        special = {str(t["content"]): int(t["id"]) for t in added if t.get("special")}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"--tokenizer {path}: not a tokenizer.json: {type(error).__name__}: {error}"
        ) from None
    if not ids:
        raise UsageError(f"--tokenizer {path}: its vocabulary is empty")
    if model.get("dropout"):
        raise UsageError(
            f"--tokenizer {path}: dropout {model['dropout']}: each run would give other ids",
            hint='set "dropout" to null in a copy of the file',
        )
    _check_against_library(path, content, added)
    plain = _is_plain(model, added)
    rules = KNOWN_RULES.get(rules_key(parsed), "") if plain else ""
    return Encoding(
        name=path.name,
        kind="tokenizer.json",
        sha256=hashlib.sha256(content).hexdigest(),
        path=os.path.abspath(path),
        special_tokens=special,
        vocab_size=max([*ids.values(), *added_ids.values()]) + 1,
        gigatoken_scheme="json" if plain else None,
        eot_candidates=_candidates(special, END_NAMES, _configured(path, "eos_token")),
        bos_candidates=_candidates(special, BEGIN_NAMES, _configured(path, "bos_token")),
        cuttable=bool(rules) and not _added_across_words(added),
        known_rules=bool(rules),
    )


def _vocabulary_ids(model: dict[str, Any]) -> dict[str, int]:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: pieces and scores, the id is the place
        return {str(piece[0]): index for index, piece in enumerate(vocab)}
    return {str(token): int(index) for token, index in vocab.items()}


def _is_plain(model: dict[str, Any], added: list[dict[str, Any]]) -> bool:
    """Nothing that gigatoken is known to read differently: it ignores marks of word ends and
    `single_word`, and it finds a token inside the string of a special one."""
    if model.get("type", "BPE") != "BPE":
        return False
    if model.get("end_of_word_suffix") or model.get("continuing_subword_prefix"):
        return False
    special = [str(token["content"]) for token in added if token.get("special")]
    others = [str(token["content"]) for token in added if not token.get("special")]
    if any(token.get("single_word") for token in added if not token.get("special")):
        return False
    if any(other in one or one in other for one in special for other in others):
        return False
    heads = {string[:i] for string in special for i in range(1, len(string))}
    tails = {string[i:] for string in special for i in range(1, len(string))}
    return not any(
        string[i:] in heads or string[:i] in tails
        for string in others
        for i in range(1, len(string))
    )


def _check_against_library(path: Path, content: bytes, added: list[dict[str, Any]]) -> None:
    """`tokenizers` gives added tokens new ids where the file's ids have holes.

    Of special tokens only the plan's ids are ever written, and those are the file's. Any other
    added token may stand in a text, and its id would be wrong in silence.
    """
    tokenizer = load_tokenizers(content, str(path))
    for token in added:
        actual = tokenizer.token_to_id(token["content"])
        if actual != token["id"] and not token.get("special"):
            raise UsageError(
                f"--tokenizer {path}: the token {token['content']!r} has id {token['id']} in the "
                f"file, but the tokenizers library gives it {actual} (the file's ids have holes)",
                hint="ids that differ from the model's would be written; fix the file's ids",
            )


def load_tokenizers(content: bytes, where: str) -> Any:
    """A `tokenizers.Tokenizer` for which all text is text."""
    from tokenizers import Tokenizer

    with faults_become(
        lambda e: UsageError(f"--tokenizer {where}: the tokenizers library cannot load it: {e}")
    ):
        tokenizer = Tokenizer.from_str(content.decode("utf-8-sig"))
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def without_special(content: bytes) -> str:
    """A tokenizer.json for gigatoken, which would find special tokens in the text."""
    parsed = json.loads(content)
    parsed["added_tokens"] = [
        token for token in parsed.get("added_tokens") or [] if not token.get("special")
    ]
    return json.dumps(parsed)


def rules_key(parsed: dict[str, Any]) -> str:
    """Of what decides how text is changed and split, written in one way."""
    rules = [_canonical(parsed.get("normalizer")), _canonical(parsed.get("pre_tokenizer"))]
    return str(xxhash.xxh3_64_hexdigest(json.dumps(rules, sort_keys=True).encode()))


def _canonical(rule: Any) -> Any:
    if isinstance(rule, list):
        return [_canonical(item) for item in rule]
    if not isinstance(rule, dict):
        return rule
    if rule.get("type") == "Sequence" and rule.get("normalizers") == []:
        return None
    kept = {key: _canonical(value) for key, value in rule.items() if key != "trim_offsets"}
    return {"use_regex": True, **kept} if rule.get("type") == "ByteLevel" else kept


def _added_across_words(added: list[dict[str, Any]]) -> bool:
    """Whether a token that may stand in a text could reach over the space between two words."""
    return any(
        not token.get("special")
        and (
            any(letter in token["content"] for letter in " ，、。")
            or any(token.get(key) for key in ("lstrip", "rstrip", "single_word"))
        )
        for token in added
    )


def _configured(path: Path, key: str) -> str:
    """What the files beside a tokenizer.json say about its special tokens."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            value = json.loads((path.parent / name).read_bytes()).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str) and value:
            return value
    return ""


def _candidates(
    special: dict[str, int], names: tuple[str, ...], configured: str
) -> tuple[str, ...]:
    found = [name for name in names if name in special]
    if configured in special and configured not in found:
        found.insert(0, configured)
    return tuple(found)


# --- SentencePiece ---------------------------------------------------------------------------


def _sentencepiece_encoding(path: Path, content: bytes) -> Encoding:
    model = load_sentencepiece(content, str(path))
    size = model.vocab_size()
    special = {model.id_to_piece(i): i for i in range(size) if model.is_control(i)}
    return Encoding(
        name=path.name,
        kind="sentencepiece",
        sha256=hashlib.sha256(content).hexdigest(),
        path=os.path.abspath(path),
        special_tokens=special,
        vocab_size=size,
        gigatoken_scheme="sentencepiece",
        eot_candidates=_piece(model, model.eos_id()),
        bos_candidates=_piece(model, model.bos_id()),
        cuttable=False,
        known_rules=False,
    )


def _piece(model: Any, index: int) -> tuple[str, ...]:
    return (model.id_to_piece(index),) if index >= 0 else ()


def load_sentencepiece(content: bytes, where: str) -> Any:
    import sentencepiece

    with faults_become(
        lambda e: UsageError(
            f"--tokenizer {where}: neither a tokenizer.json, nor .tiktoken ranks, nor a "
            f"SentencePiece model: {first_line(e)}"
        )
    ):
        if not content:
            raise ValueError("the file is empty")
        return sentencepiece.SentencePieceProcessor(model_proto=content)


# --- special ids -----------------------------------------------------------------------------


def special_id(encoding: Encoding, text: str, option: str) -> int:
    """The id that `--eot-token` or `--bos-token` names: a token of the file, or a number."""
    if text in encoding.special_tokens:
        return encoding.special_tokens[text]
    known = _added_tokens(encoding)
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


def _added_tokens(encoding: Encoding) -> dict[str, int]:
    if encoding.kind != "tokenizer.json":
        return {}
    added = json.loads(read_vocabulary(encoding)).get("added_tokens") or []
    return {str(token["content"]): int(token["id"]) for token in added}


def settled_id(encoding: Encoding, candidates: tuple[str, ...], option: str) -> int:
    """The id that the file itself settles, or an error that lists the candidates."""
    if len(candidates) == 1:
        return encoding.special_tokens[candidates[0]]
    what = "does not say" if not candidates else f"names several ({', '.join(candidates)}) for"
    raise UsageError(
        f"{encoding.name} {what} which token separates documents; give {option}"
        if option == "--eot-token"
        else f"{encoding.name} {what} which token begins a document; name it with {option}",
        hint=_choice(encoding),
    )


def _choice(encoding: Encoding) -> str:
    if not encoding.special_tokens:
        return (
            f"the file names no special tokens: give an id, such as {encoding.vocab_size} (the "
            "first one behind its ranks)"
        )
    shown = [f"{token!r} ({number})" for token, number in encoding.special_tokens.items()]
    more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
    return f"its special tokens are: {', '.join(shown[:12])}{more}; or give an id"
