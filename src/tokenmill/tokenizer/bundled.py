"""Names to encodings: patterns, special tokens, and the bundled ranks, checked by SHA-256.

Nothing here touches the network. The ranks are in the package (`vocab/*.ranks`); the original
`.tiktoken` file is rebuilt in memory and its hash compared, since both encoders would load a file
that was cut short without an error and write wrong ids.
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Literal

import msgspec

from tokenmill.errors import EncoderError, UsageError, did_you_mean

_R50K_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)
_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_O200K_PATTERN = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_LLAMA3_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# How text is split before merging. A .tiktoken file does not say it; `--pattern` names it.
PATTERNS = {
    "gpt2": _R50K_PATTERN,
    "cl100k": _CL100K_PATTERN,
    "o200k": _O200K_PATTERN,
    "llama3": _LLAMA3_PATTERN,
    "qwen2": _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"),
}
PATTERN_ALIASES = {
    "r50k_base": "gpt2",
    "p50k_base": "gpt2",
    "cl100k_base": "cl100k",
    "o200k_base": "o200k",
}

EncodingKind = Literal["tiktoken", "tokenizer.json", "sentencepiece"]


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about an encoding but its vocabulary: small, and sent to the workers."""

    name: str
    kind: EncodingKind = "tiktoken"
    sha256: str  # of the vocabulary's file
    path: str = ""  # of that file; '': bundled
    ranks_name: str = ""
    pattern: str = ""
    special_tokens: dict[str, int]
    vocab_size: int  # largest id + 1, special tokens included
    rules: str = ""  # the proven rule set (proof/rules.py); '': the reference encodes all
    why_slow: str = ""  # one sentence where `rules` is ''
    guarded: tuple[str, ...] = ()  # special tokens that the model could build from text
    screened: tuple[str, ...] = ()  # a document with one of these strings goes to the reference
    rank_hole: int = -1  # the one rank that the file leaves out (p50k: its separator's id)
    eot_candidates: tuple[str, ...] = ("<|endoftext|>",)  # exactly one: the file settles it
    bos_candidates: tuple[str, ...] = ()
    cuttable: bool = True  # a text may be cut before the space in `[A-Za-z] [A-Za-z]`

    @property
    def eot_id(self) -> int:
        """The separator's id where the file settles it."""
        return self.special_tokens[self.eot_candidates[0]] if len(self.eot_candidates) == 1 else -1


_R50K = Encoding(
    name="r50k_base",
    ranks_name="r50k_base",
    sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    pattern=_R50K_PATTERN,
    special_tokens={"<|endoftext|>": 50256},
    vocab_size=50257,
    rules="tiktoken gpt2",
)
_P50K = msgspec.structs.replace(
    _R50K,
    name="p50k_base",
    ranks_name="p50k_base",
    sha256="94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    vocab_size=50281,
    rank_hole=50256,
)
_CL100K = Encoding(
    name="cl100k_base",
    ranks_name="cl100k_base",
    sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    pattern=_CL100K_PATTERN,
    special_tokens={
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    vocab_size=100277,
    rules="tiktoken cl100k",
)
_O200K = Encoding(
    name="o200k_base",
    ranks_name="o200k_base",
    sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    pattern=_O200K_PATTERN,
    special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    vocab_size=200019,
    rules="tiktoken o200k",
)
_GPT2 = msgspec.structs.replace(_R50K, name="gpt2")  # the older name of r50k_base

ENCODINGS = {one.name: one for one in (_GPT2, _R50K, _P50K, _CL100K, _O200K)}
# Models that people name where the name of an encoding is wanted.
MODELS = {
    "gpt-4o": "o200k_base",
    "gpt-4o-mini": "o200k_base",
    "gpt-4.1": "o200k_base",
    "o1": "o200k_base",
    "gpt-5": "o200k_base",
    "gpt-4": "cl100k_base",
    "gpt-4-turbo": "cl100k_base",
    "gpt-3.5-turbo": "cl100k_base",
    "gpt-3": "r50k_base",
    "davinci": "r50k_base",
    "text-davinci-003": "p50k_base",
}


def get_encoding(name: str) -> Encoding:
    try:
        return ENCODINGS[name]
    except KeyError:
        raise UsageError(
            f"unknown tokenizer {name!r}",
            hint=f"{did_you_mean(name, ENCODINGS, MODELS)}bundled are {', '.join(ENCODINGS)}; or "
            "name a file: tokenizer.json, a SentencePiece .model, a .tiktoken file, the folder of "
            "a model, or a model on the Hub (ORG/NAME)",
        ) from None


def unpack_ranks(packed: bytes, encoding: Encoding) -> dict[bytes, int]:
    """Token bytes to rank. A `.ranks` file has the lengths and then the bytes of all tokens in the
    order of their ranks, deflated (scripts/build_vocab.py)."""
    count = int.from_bytes(packed[:4], "little")
    body = zlib.decompress(packed[4:])
    ranks, position, hole = {}, count, encoding.rank_hole
    for rank, length in enumerate(body[:count]):
        # Ranks from the hole on are one higher.
        ranks[body[position : position + length]] = rank + (0 <= hole <= rank)
        position += length
    return ranks


def write_ranks(ranks: dict[bytes, int]) -> bytes:
    """The `.tiktoken` file of ranks."""
    return b"".join(
        b"%b %d\n" % (binascii.b2a_base64(token, newline=False), rank)
        for token, rank in sorted(ranks.items(), key=itemgetter(1))
    )


def _unchecked_ranks(encoding: Encoding) -> dict[bytes, int]:
    folder = resources.files("tokenmill.tokenizer.vocab")
    return unpack_ranks(folder.joinpath(f"{encoding.ranks_name}.ranks").read_bytes(), encoding)


# Checked once in this process: opening the second encoder need not rebuild the file again.
_checked: set[str] = set()


def bundled_ranks_file(name: str) -> bytes:
    """The bytes of the `.tiktoken` file of a bundled encoding, checked by SHA-256."""
    encoding = get_encoding(name)
    original = write_ranks(_unchecked_ranks(encoding))
    if hashlib.sha256(original).hexdigest() != encoding.sha256:
        raise EncoderError(
            f"the bundled vocabulary {encoding.ranks_name} is damaged (SHA-256 differs)",
            hint="reinstall tokenmill",
        )
    _checked.add(encoding.ranks_name)
    return original


def bundled_ranks(name: str) -> dict[bytes, int]:
    """Token bytes to rank, as tiktoken wants them, from the same checked bytes."""
    encoding = get_encoding(name)
    if encoding.ranks_name not in _checked:
        bundled_ranks_file(name)
    return _unchecked_ranks(encoding)


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
            f"{encoding.path}: is not the file that this job was planned with (its SHA-256 "
            "differs)",
            hint="restore the file, or start over with --overwrite",
        )
    return content
