"""The right ids, by the library itself. Nothing here uses tokenmill's own reference code.

`tokenizers` encodes without adding special tokens, with `encode_special_tokens`, without
truncation and padding. `sentencepiece` encodes as it does by default. `tiktoken` encodes with
`encode_ordinary`.

There is one exception, "text is text": a special token's string inside a document never becomes
the special token's id. `tokenizers` breaks this rule where the model's vocabulary holds the
string of a special token and the model itself finds it (by its merges, by `ignore_merges`, as a
word of WordLevel). For such a document the right ids are those of the same file in which no text
can match the special tokens: see `unmatchable`.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenmill.tokenizer.bundled import PATTERN_ALIASES, PATTERNS

Ids = list[int]
# `None`: the library itself fails on this document.
Oracle = Callable[[Sequence[str]], list[Ids | None]]


def open_oracle(path: Path, pattern: str = "") -> Oracle:
    content = path.read_bytes()
    if path.suffix == ".json":
        return json_oracle(content.decode())
    if path.suffix == ".tiktoken":
        return ranks_oracle(content, pattern)
    return sentencepiece_oracle(content)


def sentencepiece_oracle(content: bytes) -> Oracle:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    return lambda texts: model.encode(list(texts), out_type=int) if texts else []


def ranks_oracle(content: bytes, pattern: str) -> Oracle:
    import tiktoken

    lines = (line.split() for line in content.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    name = PATTERN_ALIASES.get(pattern, pattern)
    regex = PATTERNS.get(name, pattern)
    codec = tiktoken.Encoding("farm", pat_str=regex, mergeable_ranks=ranks, special_tokens={})

    def encode(texts: Sequence[str]) -> list[Ids | None]:
        return _all_or_one_by_one(
            lambda some: [codec.encode_ordinary(text) for text in some], texts
        )

    return encode


# --- tokenizers ------------------------------------------------------------------------------


def load(content: str) -> Any:
    """The library's tokenizer, for which special tokens in a text are text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def json_oracle(content: str) -> Oracle:
    tokenizer = load(content)
    parsed = json.loads(content)
    special = special_ids(parsed, tokenizer)
    unknown = unknown_id(parsed)
    strict = load(json.dumps(unmatchable(parsed))) if special else None

    def encode(texts: Sequence[str]) -> list[Ids | None]:
        found = encode_with(tokenizer, texts)
        if strict is None:
            return found
        suspects = [i for i, ids in enumerate(found) if ids and special.intersection(ids)]
        others = encode_with(strict, [texts[i] for i in suspects])
        for index, other in zip(suspects, others, strict=True):
            if breaks_the_rule(found[index] or [], other, special, unknown):
                found[index] = other
        return found

    return encode


def breaks_the_rule(ids: Ids, strict: Ids | None, special: set[int], unknown: int) -> bool:
    """Whether the library made a special token's id out of text.

    The id of the unknown token is right for unknown text. Such text gives the same id where no
    special token can match, so that only further ones came from the token's own string.
    """
    if any(number in special and number != unknown for number in ids):
        return True
    return strict is None or ids.count(unknown) > strict.count(unknown)


def special_ids(parsed: dict[str, Any], tokenizer: Any) -> set[int]:
    """Ids of added tokens with `special: true`, as the library numbers them."""
    strings = [t["content"] for t in parsed.get("added_tokens") or [] if t.get("special")]
    return {tokenizer.token_to_id(string) for string in strings} - {None}


def unknown_id(parsed: dict[str, Any]) -> int:
    model = parsed["model"]
    if isinstance(model["vocab"], list):
        return -1 if model.get("unk_id") is None else int(model["unk_id"])
    return int(model["vocab"].get(model.get("unk_token"), -1))


def unmatchable(parsed: dict[str, Any]) -> dict[str, Any]:
    """The file with other strings for its special tokens, which no text holds.

    The ids stay. The unknown token is renamed along. Merges that make such a token go.
    """
    parsed = copy.deepcopy(parsed)
    names = {
        t["content"]: f"\U0010fffe{number}\U0010fffd"
        for number, t in enumerate(parsed["added_tokens"])
        if t.get("special")
    }
    for token in parsed["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = parsed["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(p[0], p[0]), *p[1:]] for p in model["vocab"]]
        return parsed
    model["vocab"] = {names.get(t, t): number for t, number in model["vocab"].items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [m for m in model["merges"] if not _touches(m, names, prefix)]
    return parsed


def _touches(merge: Any, names: dict[str, str], prefix: str) -> bool:
    """Whether a merge makes one of the tokens, or needs one as a part."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    made = left + right.removeprefix(prefix) if prefix else left + right
    return made in names or left in names or right in names


def encode_with(tokenizer: Any, texts: Sequence[str]) -> list[Ids | None]:
    def batch(some: Sequence[str]) -> list[Ids]:
        encoded = tokenizer.encode_batch_fast(list(some), add_special_tokens=False)
        return [one.ids for one in encoded]

    return _all_or_one_by_one(batch, texts)


def _all_or_one_by_one(
    batch: Callable[[Sequence[str]], list[Ids]], texts: Sequence[str]
) -> list[Ids | None]:
    """All at once; where the library fails, one by one, so that only some have no ids."""
    found = _or_none(batch, texts)
    if found is not None:
        return list(found)
    alone = [_or_none(batch, [text]) for text in texts]
    return [None if one is None else one[0] for one in alone]


def _or_none(batch: Callable[[Sequence[str]], list[Ids]], texts: Sequence[str]) -> list[Ids] | None:
    try:
        return batch(texts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic of the library is not an Exception
        return None
