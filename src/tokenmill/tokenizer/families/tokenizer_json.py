"""tokenizer.json files, whose library is `tokenizers`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import UsageError, faults_become
from tokenmill.tokenizer.bundled import Encoding, read_vocabulary
from tokenmill.tokenizer.families.base import (
    MOST_IDS,
    Decode,
    Encode,
    Family,
    open_bpe,
    piece_bytes,
)
from tokenmill.tokenizer.proof.proven import (
    BYTE_NAMES,
    added_tokens,
    built_specials,
    byte_letters,
    judge_json,
    merges_of,
    screened_strings,
)
from tokenmill.tokenizer.proof.rules import RULE_SETS, SIGNS_AT_CUTS, RuleSet

# Names under which models end a text. One of them in a file settles its separator.
END_NAMES = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]",
)  # fmt: skip
BEGIN_NAMES = (
    "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]",
)  # fmt: skip

# The beginning of names that stand for special tokens where no text may spell them.
UNSPELLED = "\U0010fffe" * 50


class _AddedToken(msgspec.Struct):
    content: str
    id: int


class _AddedTokens(msgspec.Struct):
    """The part of a file that is read without the rest: some files have tens of megabytes."""

    added_tokens: list[_AddedToken] | None = None


class TokenizerJsonFamily(Family):
    kind = "tokenizer.json"
    library = "tokenizers"
    speed = 2
    reference_factor = 220

    def recognises(self, head: bytes) -> bool:
        return head.startswith(b"{")

    def identify(self, path: Path, content: bytes, pattern: str) -> Encoding:
        parsed = _parse_json(path, content)
        model, added = parsed["model"], parsed["added_tokens"]
        ids = _vocabulary_ids(model)
        special = {str(t["content"]): int(t["id"]) for t in added if t.get("special")}
        if model.get("dropout"):
            raise UsageError(
                f"--tokenizer {path}: dropout {model['dropout']}: each run would give other ids",
                hint='set "dropout" to null in a copy of the file',
            )
        largest = max([*ids.values(), *(int(token["id"]) for token in added)])
        if largest >= MOST_IDS:
            raise UsageError(
                f"--tokenizer {path}: the id {largest} is too large (at most {MOST_IDS - 1:,})",
                hint="the file is damaged: download it again",
            )
        _check_shared_ids(path, ids, added)
        library = _check_against_library(path, content, added)
        model["type"] = type(library.model).__name__  # old files leave it out
        verdict = judge_json(parsed)
        guarded = _guarded(parsed, ids, special)
        return Encoding(
            name=path.name,
            kind=self.kind,
            sha256=hashlib.sha256(content).hexdigest(),
            path=os.path.abspath(path),
            special_tokens=special,
            vocab_size=largest + 1,
            rules=verdict.rules,
            why_slow=verdict.why_slow,
            guarded=guarded,
            screened=screened_strings(parsed) if verdict.rules else (),
            eot_candidates=_candidates(special, END_NAMES, _configured(path, "eos_token")),
            bos_candidates=_candidates(special, BEGIN_NAMES, _configured(path, "bos_token")),
            cuttable=bool(verdict.rules)
            and RULE_SETS[verdict.rules].cuttable
            and not _added_across_words(added)
            and not built_specials(parsed),
        )

    def open_reference(self, encoding: Encoding) -> Encode:
        content = read_vocabulary(encoding)
        opened = load_tokenizers(content, encoding.path)
        special = {opened.token_to_id(token) for token in encoding.guarded}
        if special:
            return _open_guarded(opened, special, content, encoding.path)
        return lambda text: opened.encode(text, add_special_tokens=False).ids

    def open_fast(self, encoding: Encoding, content: bytes) -> Any:
        parsed, rules = parse_json(content), RULE_SETS[encoding.rules]
        model = _plain_model(parsed["model"], rules, set(encoding.guarded))
        return open_bpe(model, added_tokens(parsed)[0], rules)

    def token_bytes(self, encoding: Encoding) -> dict[int, bytes]:
        """Tokens are written as bytes in GPT-2's alphabet, or as SentencePiece writes them."""
        parsed = parse_json(read_vocabulary(encoding))
        vocabulary = _vocabulary_ids(parsed["model"])
        rules = json.dumps([parsed.get("pre_tokenizer"), parsed.get("decoder")])
        bytes_of = _level_bytes if '"ByteLevel"' in rules else piece_bytes
        tokens = {int(number): bytes_of(token) for token, number in vocabulary.items()}
        added = parsed.get("added_tokens") or []
        return tokens | {int(token["id"]): str(token["content"]).encode() for token in added}

    def open_text_decoder(self, encoding: Encoding) -> Decode:
        opened = load_tokenizers(read_vocabulary(encoding), encoding.path)
        return lambda ids: str(opened.decode(ids, skip_special_tokens=False))

    def extra_tokens(self, encoding: Encoding) -> dict[str, int]:
        content = read_vocabulary(encoding).removeprefix(b"\xef\xbb\xbf")
        added = msgspec.json.decode(content, type=_AddedTokens).added_tokens or []
        return {token.content: token.id for token in added}


def _parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """The file as Python objects, with what we need of it in its place."""
    try:
        parsed = parse_json(content)
        parsed["added_tokens"] = parsed.get("added_tokens") or []
        for token in parsed["added_tokens"]:
            int(token["id"]), str(token["content"])
        ids = _vocabulary_ids(parsed["model"])
        if not ids or set(map(type, ids.values())) != {int}:
            raise ValueError("its vocabulary is empty, or an id is not a number")
        if parsed["model"].get("merges"):
            parsed["model"]["merges"] = merges_of(parsed["model"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UsageError(
            f"--tokenizer {path}: not a tokenizer.json: {type(error).__name__}: {error}"
        ) from None
    except RecursionError:
        raise UsageError(
            f"--tokenizer {path}: not a tokenizer.json: too many brackets inside each other"
        ) from None
    return parsed


def parse_json(content: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    return parsed


def _vocabulary_ids(model: dict[str, Any]) -> dict[str, int]:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: pieces and scores, the id is the place
        return {str(piece[0]): index for index, piece in enumerate(vocab)}
    return vocab  # type: ignore[no-any-return]


def _guarded(
    parsed: dict[str, Any], ids: dict[str, int], special: dict[str, int]
) -> tuple[str, ...]:
    """Special tokens whose id the model itself may give to text that spells them.

    One character is never guarded: without its token that text could not be encoded.
    """
    model = parsed["model"]
    if model["type"] == "BPE" and not model.get("ignore_merges"):
        return tuple(built_specials(parsed))
    return tuple(sorted(token for token in special if token in ids and len(token) > 1))


def _check_shared_ids(path: Path, ids: dict[str, int], added: list[dict[str, Any]]) -> None:
    """An added token may stand in the vocabulary too; any other token must not have its id."""
    wanted = {int(token["id"]): str(token["content"]) for token in added}
    if wanted.keys().isdisjoint(ids.values()):
        return
    for name, number in ids.items():
        if wanted.get(number, name) != name:
            raise UsageError(
                f"--tokenizer {path}: the tokens {name!r} and {wanted[number]!r} have the same id, "
                f"{number}",
                hint="the two could not be told apart in a dataset; fix the ids in the file",
            )


def _check_against_library(path: Path, content: bytes, added: list[dict[str, Any]]) -> Any:
    """`tokenizers` gives added tokens new ids where the file's ids have holes.

    Of special tokens only the plan's ids are ever written, and those are the file's. Any other
    added token may stand in a text, and its id would be wrong in silence.
    """
    tokenizer = load_tokenizers(content, str(path))
    normalizer = tokenizer.normalizer
    for token in added:
        content = token["content"]
        if token.get("normalized") and normalizer and not normalizer.normalize_str(content):
            raise UsageError(
                f"--tokenizer {path}: nothing is left of the added token {content!r} after "
                "normalizing: the library would find it everywhere, without end",
                hint='set "normalized" to false for this token in a copy of the file',
            )
        actual = tokenizer.token_to_id(token["content"])
        if actual != token["id"] and not token.get("special"):
            raise UsageError(
                f"--tokenizer {path}: the token {token['content']!r} has id {token['id']} in the "
                f"file, but the tokenizers library gives it {actual} (the file's ids have holes)",
                hint="ids that differ from the model's would be written; fix the file's ids",
            )
    return tokenizer


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


def _without_specials(parsed: dict[str, Any]) -> bytes:
    """A tokenizer.json in which no text spells a special token.

    Their ids stay taken, by other names. Merges that build one, or need one, are left out. A token
    that stands for one character or byte stays: that text could not be encoded without it.
    """
    model, added = parsed["model"], parsed["added_tokens"]
    ending = model.get("end_of_word_suffix") or ""
    special = [
        t["content"]
        for t in added
        if t.get("special")
        and len(t["content"].removesuffix(ending)) > 1
        and t["content"] not in BYTE_NAMES
    ]
    names = {token: f"{UNSPELLED}{i}" for i, token in enumerate(special)}
    for token in added:
        token["content"] = names.get(token["content"], token["content"])
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(t, t): number for t, number in model["vocab"].items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [
            [left, right]
            for left, right in merges_of(model)
            if names.keys().isdisjoint((left, right, left + right.removeprefix(prefix)))
        ]
    return msgspec.json.encode(parsed)


def _open_guarded(tokenizer: Any, special: set[int], content: bytes, path: str) -> Encode:
    """Encodes again without special tokens where the model built one from text (law 3)."""
    parsed = parse_json(content)
    unknown = _unknown_id(parsed["model"])
    strict_tokenizer = load_tokenizers(_without_specials(parsed), path)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if special.isdisjoint(ids):
            return ids
        strict: list[int] = strict_tokenizer.encode(text, add_special_tokens=False).ids
        if special.isdisjoint(set(ids) - {unknown}):
            # Unknown text has this id rightly. More of them came from the token's own string.
            return strict if ids.count(unknown) > strict.count(unknown) else ids
        return strict

    return encode


def _unknown_id(model: Mapping[str, Any]) -> int:
    """The id that a tokenizer.json gives to unknown text; -1: none."""
    if isinstance(model["vocab"], list):
        return -1 if model.get("unk_id") is None else int(model["unk_id"])
    return int(model["vocab"].get(model.get("unk_token"), -1))


def _plain_model(model: Mapping[str, Any], rules: RuleSet, guarded: set[str]) -> dict[str, Any]:
    vocab = {name: number for name, number in model["vocab"].items() if name not in guarded}
    if rules.kind == "bytes":
        # A name with other letters stands for no bytes: the library never finds it in a text.
        letters = set(byte_letters())
        if not letters.issuperset("".join(vocab)):
            vocab = {name: number for name, number in vocab.items() if letters.issuperset(name)}
    merges = merges_of(model)
    if guarded:
        merges = [
            (left, right)
            for left, right in merges
            if guarded.isdisjoint((left, right, left + right))
        ]
    return {
        "vocab": vocab,
        "merges": merges,
        "byte_fallback": rules.kind == "characters",
        "ignore_merges": bool(model.get("ignore_merges")),
    }


def _level_bytes(token: str) -> bytes:
    """A token in GPT-2's letters for bytes; other letters stand for themselves."""
    return b"".join(_LETTERS.get(letter, letter.encode()) for letter in token)


_LETTERS = {letter: bytes([byte]) for letter, byte in byte_letters().items()}


def _added_across_words(added: list[dict[str, Any]]) -> bool:
    """Whether a token that may stand in a text could reach over the space between two words."""
    return any(
        not token.get("special")
        and (
            any(letter in token["content"] for letter in SIGNS_AT_CUTS)
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
    """`configured`: by the tokenizer_config.json beside the file. It settles which of the usual
    names is meant. Another name may end a turn of a chat and not a document, so it settles none."""
    found = [name for name in names if name in special]
    if configured in found:
        return (configured,)
    return tuple([configured] * (configured in special) + found)
