"""Decides whether a tokenizer is one for which the fast encoder is proven.

Pure: nothing is opened, encoded or measured here, so that no sample of text can
make a tokenizer look proven. `docs/exactness.md` gives the reason for every condition.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tokenmill.tokenizer.bundled import ENCODINGS, PATTERNS
from tokenmill.tokenizer.proof.piece_model import BYTE, CONTROL, UNKNOWN, UNUSED, PieceModel
from tokenmill.tokenizer.proof.rules import (
    FORMS,
    ISOLATED,
    MARK,
    PREPEND,
    REPLACE,
    RULE_SETS,
    SPLITS,
    byte_level_steps,
)

LARGEST_ID = (1 << 21) - 1  # gigatoken packs a pair of ids and the merged one into 63 bits
MOST_HOLES = 500  # in ranks: there are 1,024 names to fill them with, some of which may be taken
MOST_SCREENED = 256  # strings that documents are searched for


class Verdict(NamedTuple):
    rules: str  # a key of RULE_SETS; '': the reference encodes everything
    why_slow: str  # one sentence where `rules` is ''


class _NotProvenError(Exception):
    """Carries the sentence for the user."""


def _require(condition: object, why_not: str) -> None:
    if not condition:
        raise _NotProvenError(why_not)


# --- .tiktoken -------------------------------------------------------------------------------


def judge_ranks(ranks: Mapping[bytes, int], pattern: str, sha256: str) -> Verdict:
    """`sha256` of the file: the bundled ones need no check, which takes up to two seconds."""
    name = next((name for name, known in PATTERNS.items() if known == pattern), "")
    bundled = any(encoding.sha256 == sha256 for encoding in ENCODINGS.values())
    try:
        _require(name, "this --pattern is not proven for the fast encoder")
        if not bundled:
            _check_ranks(ranks)
    except _NotProvenError as error:
        return Verdict("", str(error))
    return Verdict(f"tiktoken {name}", "")


def _check_ranks(ranks: Mapping[bytes, int]) -> None:
    single = {rank for token, rank in ranks.items() if len(token) == 1}
    _require(single == set(range(256)), "the ranks 0 to 255 are not the 256 bytes")
    _require(max(ranks.values()) <= LARGEST_ID, "a rank is too large for the fast encoder")
    holes = max(ranks.values()) + 1 - len(ranks)
    _require(holes <= MOST_HOLES, f"{holes:,} ranks are left out")
    for token, rank in ranks.items():
        _require(
            len(token) < 2 or _parts(token, rank, ranks) == 2,
            f"rank {rank} cannot be built from two tokens of lower rank",
        )


def _parts(token: bytes, limit: int, ranks: Mapping[bytes, int]) -> int:
    """How many tokens of a rank below `limit` tiktoken makes of these bytes."""
    if len(token) == 2:
        return 2
    bounds = list(range(len(token) + 1))
    pairs = [ranks.get(token[i : i + 2], limit) for i in range(len(token) - 1)]
    while pairs:
        best = min(pairs)
        if best >= limit:
            break
        at = pairs.index(best)
        del bounds[at + 1], pairs[at]
        for left in (at - 1, at):
            if 0 <= left < len(pairs):
                pairs[left] = ranks.get(token[bounds[left] : bounds[left + 2]], limit)
    return len(bounds) - 1


# --- tokenizer.json --------------------------------------------------------------------------


def judge_json(parsed: Mapping[str, Any]) -> Verdict:
    """The type of the model must be in its place: old files leave it to the library to find out."""
    try:
        return Verdict(_json_rules(parsed), "")
    except _NotProvenError as error:
        return Verdict("", str(error))


def _json_rules(parsed: Mapping[str, Any]) -> str:
    model = parsed["model"]
    kind, vocab, merges = model.get("type"), model["vocab"], merges_of(model)
    _require(kind == "BPE", f"the model {kind} is not proven for the fast encoder")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        _require(not model.get(key), f"{key} is not proven for the fast encoder")
    _require(len(set(vocab.values())) == len(vocab), "two tokens have the same id")
    _require(max(vocab.values()) <= LARGEST_ID, "an id is too large for the fast encoder")
    _require(len(set(merges)) == len(merges), "a merge is listed twice")
    if model.get("byte_fallback"):
        rules = _character_rules(parsed)
        _check_characters(vocab, merges)
    else:
        rules = _byte_rules(parsed)
        _check_bytes(vocab, merges)
    named = set(itertools.chain.from_iterable(merges)).union(map("".join, merges))
    _require(named <= vocab.keys(), "a merge names a token that is not in the vocabulary")
    _check_added(parsed)
    return rules


def merges_of(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges as pairs; older files write 'a b', and the library skips '#version' there."""
    merges = model.get("merges") or []
    if merges and isinstance(merges[0], str):
        return [tuple(m.split(" ", 1)) for m in merges if not m.startswith("#version")]
    return list(map(tuple, merges))


def _byte_rules(parsed: Mapping[str, Any]) -> str:
    normalizers = _steps(parsed.get("normalizer"))
    one_form = normalizers in ([], [{"type": "NFC"}], [{"type": "NFKC"}])
    _require(one_form, _unknown("normalizer", normalizers))
    form = normalizers[0]["type"] if normalizers else ""
    steps = _steps(parsed.get("pre_tokenizer"))
    digits = bool(steps) and steps[0] == {"type": "Digits", "individual_digits": True}
    others = _isolated(steps[1:] if digits else steps)
    name = next((name for name in SPLITS if others == byte_level_steps(SPLITS[name])), "")
    rules = f"{'digits ' if digits else ''}{name}"
    _require(name and rules in FORMS, _unknown("pre-tokenizer", steps))
    together = f"{rules} {form}".strip()
    _require(together in RULE_SETS, f"normalizer {form} with the pattern of {name} is not proven")
    return together


def _steps(rule: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre_tokenizer, without what does not change ids."""
    if rule is None:
        return []
    if rule.get("type") == "Sequence":
        steps = rule["normalizers"] if "normalizers" in rule else rule["pretokenizers"]
        return list(itertools.chain.from_iterable(map(_steps, steps)))
    step = {name: value for name, value in rule.items() if name != "trim_offsets"}
    if step.get("type") == "ByteLevel":
        step.setdefault("use_regex", True)
    return [step]


def _isolated(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A single Split that removes what does not match, as one that isolates what does.

    The patterns of the list match every character, so that nothing is removed. DeepSeek has three
    Splits, of which two leave text unmatched: there it is not the same.
    """
    removed = {"type": "Split", "behavior": "Removed", "invert": True}
    if sum(step.get("type") == "Split" for step in steps) != 1:
        return steps
    return [{**step, **ISOLATED} if removed.items() <= step.items() else step for step in steps]


def _unknown(what: str, steps: list[dict[str, Any]]) -> str:
    names = " before ".join(str(step.get("type")) for step in steps) or "none"
    return f"{what} {names} is not proven for the fast encoder"


def _check_bytes(vocab: Mapping[str, int], merges: list[tuple[str, str]]) -> None:
    letters = byte_letters()
    for letter, byte in letters.items():
        there = letter in vocab or byte in NEVER_IN_UTF8
        _require(there, f"there is no token for byte 0x{byte:02x}")
    used = set().union(*itertools.chain.from_iterable(merges))
    _require(used <= letters.keys(), "a merge holds letters that stand for no byte")


NEVER_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


def byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


# --- SentencePiece's kind of BPE, in a tokenizer.json -----------------------------------------

# What gigatoken may take for the name of a byte: it also reads <0xc3> and <0x+A>.
BYTE_NAME = re.compile("<0x.{1,2}>", re.DOTALL)
BYTE_NAMES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_NO_OP_SPLIT = {
    "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
}  # fmt: skip


def _character_rules(parsed: Mapping[str, Any]) -> str:
    _require(not parsed["model"].get("ignore_merges"), "ignore_merges with byte_fallback")
    normalizers = _steps(parsed.get("normalizer"))
    steps = _steps(parsed.get("pre_tokenizer"))
    if normalizers == [PREPEND, REPLACE] and not steps:
        return "llama2"
    if normalizers == [REPLACE] and steps in ([], [_NO_OP_SPLIT]):
        return "gemma"
    if not normalizers and len(steps) == 1 and steps[0].get("type") == "Metaspace":
        return _metaspace_rules(steps[0])
    _require(steps or not normalizers, _unknown("normalizer", normalizers))
    raise _NotProvenError(_unknown("pre-tokenizer", steps))


def _metaspace_rules(step: Mapping[str, Any]) -> str:
    whole = {"split": True, **step}
    for name, rules in RULE_SETS.items():
        if rules.metaspace == whole:
            return name
    form = ", ".join(f"{key} {value}" for key, value in whole.items() if key != "type")
    raise _NotProvenError(f"Metaspace with {form} is not proven for the fast encoder")


def _check_characters(vocab: Mapping[str, int], merges: list[tuple[str, str]]) -> None:
    for byte in range(256):
        there = f"<0x{byte:02X}>" in vocab or (byte < 0x80 and chr(byte) in vocab)
        _require(there or byte in NEVER_IN_UTF8, f"there is no token for byte 0x{byte:02x}")
    strange = next((n for n in vocab if BYTE_NAME.fullmatch(n) and n not in BYTE_NAMES), "")
    _require(not strange, f"the token {strange} looks like a byte")
    for left, right in merges:
        if "<0x" in left + right:
            names = any(map(BYTE_NAME.fullmatch, (left, right, left + right)))
            _require(not names, "a merge holds the name of a byte")


# --- added tokens ----------------------------------------------------------------------------


def _check_added(parsed: Mapping[str, Any]) -> None:
    added = [token for token in parsed.get("added_tokens") or [] if token["content"]]
    for content, times in Counter(token["content"] for token in added).items():
        _require(times == 1, f"the added token {content!r} is listed twice")
    strings = screened_strings(parsed)
    _require(
        len(strings) <= MOST_SCREENED,
        f"{len(strings)} added tokens would have to be looked for in every document",
    )
    late = any(token.get("normalized") for token in added_tokens(parsed)[1])
    _require(
        not (late and _steps(parsed.get("normalizer"))),
        "an added token is looked for in normalized text",
    )
    spelled = _spelled(parsed)
    marked = bool(parsed["model"].get("byte_fallback"))  # then spaces are written as U+2581
    spaced = marked and any(MARK in one or " " in one for one in spelled)
    _require(
        not (spelled and _has_normal_form(parsed)) and not spaced,
        "the merges build a special token from text that is changed before",
    )


def screened_strings(parsed: Mapping[str, Any]) -> tuple[str, ...]:
    """A document with one of these strings goes to the reference."""
    others = [str(token["content"]) for token in added_tokens(parsed)[1]]
    return (*others, *_spelled(parsed))


def _spelled(parsed: Mapping[str, Any]) -> list[str]:
    """The texts that make the model build a special token."""
    built = built_specials(parsed)
    if parsed["model"].get("byte_fallback"):
        return built
    letters = byte_letters()
    found = []
    for name in built:
        try:
            found.append(bytes(letters[letter] for letter in name).decode())
        except (KeyError, UnicodeDecodeError):
            raise _NotProvenError("the merges build a special token of half a character") from None
    return found


def built_specials(parsed: Mapping[str, Any]) -> list[str]:
    """Special tokens that merges build from text, or on the way to a longer token."""
    special = {str(t["content"]) for t in parsed.get("added_tokens") or [] if t.get("special")}
    spelled = {token for token in special if token in parsed["model"]["vocab"] and len(token) > 1}
    if not spelled:
        return []
    prefix = parsed["model"].get("continuing_subword_prefix") or ""
    merges = merges_of(parsed["model"])
    return sorted(spelled.intersection(a + b.removeprefix(prefix) for a, b in merges))


def added_tokens(
    parsed: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Added tokens that are not special: those gigatoken finds as the library does, and those
    whose documents go to the reference. One list is empty: either all are plain, or none is."""
    added = [token for token in parsed.get("added_tokens") or [] if token["content"]]
    special = [str(token["content"]) for token in added if token.get("special")]
    others = [token for token in added if not token.get("special")]
    normalizers, flags = _steps(parsed.get("normalizer")), ("lstrip", "rstrip", "single_word")
    plain = (
        not any(token.get(flag) for token in others for flag in flags)
        and len({bool(token.get("normalized")) for token in others}) <= 1
        and not (normalizers and any(token.get("normalized") for token in others))
        and [step.get("type") for step in _steps(parsed.get("pre_tokenizer"))][:1] != ["Digits"]
        and not _has_normal_form(parsed)
        and not overlap(special, [str(token["content"]) for token in others])
    )
    return (others, []) if plain else ([], others)


def _has_normal_form(parsed: Mapping[str, Any]) -> bool:
    return any(step.get("type") in ("NFC", "NFKC") for step in _steps(parsed.get("normalizer")))


def overlap(special: list[str], others: list[str]) -> bool:
    """Whether one of `others` can share a place of a text with a special token."""
    if any(other in one or one in other for one in special for other in others):
        return True
    heads = {string[:i] for string in special for i in range(1, len(string))}
    tails = {string[i:] for string in special for i in range(1, len(string))}
    return any(
        string[i:] in heads or string[:i] in tails
        for string in others
        for i in range(1, len(string))
    )


# --- a SentencePiece model -------------------------------------------------------------------


def judge_model(model: PieceModel) -> Verdict:
    try:
        _check_model(model)
    except _NotProvenError as error:
        return Verdict("", str(error))
    if model.changes_text:
        return Verdict("sentencepiece normalized", "")
    prefix = "" if model.add_dummy_prefix else " without prefix"
    return Verdict(f"sentencepiece{prefix}", "")


def _check_model(model: PieceModel) -> None:
    _require(model.model_type == "bpe", f"the model {model.model_type} is not proven")
    _require(model.byte_fallback, "without byte_fallback it is not proven for the fast encoder")
    _require(
        model.escape_whitespaces and not model.whitespace_as_suffix,
        "its way to write spaces is not proven for the fast encoder",
    )
    bytes_there = {piece for piece, kind in model.kinds.items() if kind == BYTE}
    _require(bytes_there == BYTE_NAMES, "there is no piece for each byte")
    reserved = [p for p, kind in model.kinds.items() if kind in (CONTROL, UNKNOWN, BYTE)]
    _require(all(len(piece) > 1 for piece in reserved), "a control symbol is one character")
    _require(UNUSED not in model.kinds.values(), "unused pieces are not proven")
    scores = model.normal
    letters = {piece for piece in scores if len(piece) == 1}
    _require(
        set().union(*scores) <= letters if scores else True,
        "a piece holds a character that is not a piece",
    )
    strange = any(BYTE_NAME.fullmatch(piece) for piece in scores if piece.startswith("<0x"))
    _require(not strange, "a piece looks like a byte")
    symbols = model.user_defined
    _require(len(symbols) <= MOST_SCREENED, f"{len(symbols)} user-defined symbols")
    _require(
        not (symbols and model.changes_text), "user-defined symbols in text that is normalized"
    )
    _require(
        not any(MARK in symbol or " " in symbol or not symbol for symbol in symbols),
        "a user-defined symbol holds a space",
    )
    _check_scores(scores)


def _check_scores(scores: Mapping[str, float]) -> None:
    """Each piece that is merged has a score of its own, but for one group of runs of one letter."""
    _require(not any(map(math.isnan, scores.values())), "a score is not a number")
    mergeable = [p for p in scores if len(p) > 1 and next(splits(p, scores), None)]
    times = Counter(scores[piece] for piece in mergeable)
    for score in (score for score, count in times.items() if count > 1):
        group = [piece for piece in mergeable if scores[piece] == score]
        _require(_is_run_group(group, scores), "two pieces have the same score")


def splits(piece: str, scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Every pair of pieces that the piece can be merged from."""
    return (
        (piece[:i], piece[i:])
        for i in range(1, len(piece))
        if piece[:i] in scores and piece[i:] in scores
    )


def _is_run_group(group: list[str], scores: Mapping[str, float]) -> bool:
    """Runs of one letter, which no other piece holds behind another letter, and whose merges both
    encoders do in the same order: for all lengths of a run that can matter."""
    letter = group[0][0]
    if any(set(piece) != {letter} for piece in group):
        return False
    lengths = {len(piece) for piece in group} | {1}
    for piece in scores:
        rest = piece.lstrip(letter)
        if letter in rest or (not rest and len(piece) not in lengths):
            return False
    return all(_same_order([1] * length, lengths) for length in range(2, 4 * max(lengths)))


def _same_order(run: list[int], lengths: set[int]) -> bool:
    """Whether the leftmost pair of a run is always the one with the longest left, then right,
    part: the former is merged next by SentencePiece, the latter by gigatoken."""
    while True:
        pairs = [i for i in range(len(run) - 1) if run[i] + run[i + 1] in lengths]
        if not pairs:
            return True
        first = pairs[0]
        if any((run[i], run[i + 1]) > (run[first], run[first + 1]) for i in pairs):
            return False
        run[first : first + 2] = [run[first] + run[first + 1]]
