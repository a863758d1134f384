"""Names to encodings: patterns, special tokens, and the bundled ranks, checked by SHA-256.

Nothing here touches the network. The ranks are in the package (`vocab/*.ranks`); the original
`.tiktoken` file is rebuilt in memory and its hash compared each time an encoder is opened, since
both encoders would load a cut file without a word and write wrong ids. Tokenizers that a user
brings as files are in `vocabulary_files.py`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from importlib import resources
from typing import Literal, NamedTuple

import msgspec

from tokenmill.errors import EncoderError, UsageError

_R50K_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)
_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_CONTRACTIONS = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
_O200K_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"""
        + _CONTRACTIONS,
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"""
        + _CONTRACTIONS,
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)


class Pattern(NamedTuple):
    """How text is split before merging, and what gigatoken calls that (None: it cannot)."""

    regex: str
    gigatoken_scheme: str | None


# What a .tiktoken file does not say; the names are those of `--pattern`.
_LLAMA3_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
PATTERNS: dict[str, Pattern] = {
    "gpt2": Pattern(_R50K_PATTERN, "gpt2"),
    "cl100k": Pattern(_CL100K_PATTERN, "cl100k"),
    "o200k": Pattern(_O200K_PATTERN, "o200k"),
    "llama3": Pattern(_LLAMA3_PATTERN, "cl100k"),
    "qwen2": Pattern(_LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"), "qwen2"),
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
    gigatoken_scheme: str | None  # None: gigatoken cannot load it, the reference serves
    rank_hole: int = -1  # the one rank that the file leaves out (p50k: its separator's id)
    eot_candidates: tuple[str, ...] = ("<|endoftext|>",)  # exactly one: the file settles it
    bos_candidates: tuple[str, ...] = ()
    cuttable: bool = True  # a text may be cut before the space in `[A-Za-z] [A-Za-z]`
    known_rules: bool = True  # the shipped table of code points is right for it

    @property
    def eot_id(self) -> int:
        """The separator's id where the file settles it."""
        return self.special_tokens[self.eot_candidates[0]] if len(self.eot_candidates) == 1 else -1


def _encoding(name: str, ranks_name: str, sha256: str, pattern: str, **kwargs: object) -> Encoding:
    return msgspec.convert(
        {"name": name, "ranks_name": ranks_name, "sha256": sha256, "pattern": pattern, **kwargs},
        Encoding,
    )


_R50K_SHA = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
_EOT_ONLY = {"<|endoftext|>": 50256}

ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        # gpt2 is r50k_base under its older name: the same ranks, pattern and separator.
        *(
            _encoding(
                name,
                "r50k_base",
                _R50K_SHA,
                _R50K_PATTERN,
                special_tokens=_EOT_ONLY,
                vocab_size=50257,
                gigatoken_scheme="gpt2",
            )
            for name in ("gpt2", "r50k_base")
        ),
        _encoding(
            "p50k_base",
            "p50k_base",
            "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
            _R50K_PATTERN,
            special_tokens=_EOT_ONLY,
            vocab_size=50281,
            gigatoken_scheme="gpt2",
            rank_hole=50256,
        ),
        _encoding(
            "cl100k_base",
            "cl100k_base",
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            _CL100K_PATTERN,
            special_tokens={
                "<|endoftext|>": 100257,
                "<|fim_prefix|>": 100258,
                "<|fim_middle|>": 100259,
                "<|fim_suffix|>": 100260,
                "<|endofprompt|>": 100276,
            },
            vocab_size=100277,
            gigatoken_scheme="cl100k",
        ),
        _encoding(
            "o200k_base",
            "o200k_base",
            "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            _O200K_PATTERN,
            special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
            vocab_size=200019,
            gigatoken_scheme="o200k",
        ),
    )
}


def get_encoding(name: str) -> Encoding:
    try:
        return ENCODINGS[name]
    except KeyError:
        raise UsageError(
            f"unknown tokenizer {name!r}",
            hint=f"bundled are {', '.join(ENCODINGS)}; or name a file: tokenizer.json, a "
            "SentencePiece .model, a .tiktoken file, or the folder of a model",
        ) from None


def pack_ranks(original: bytes) -> bytes:
    """A .tiktoken file as lengths and bytes in rank order, deflated."""
    tokens = [base64.b64decode(line.split()[0]) for line in original.splitlines()]
    body = bytes(len(token) for token in tokens) + b"".join(tokens)
    return len(tokens).to_bytes(4, "little") + zlib.compress(body, 9)


def _tokens(packed: bytes) -> list[bytes]:
    count = int.from_bytes(packed[:4], "little")
    body = zlib.decompress(packed[4:])
    tokens, position = [], count
    for length in body[:count]:
        tokens.append(body[position : position + length])
        position += length
    return tokens


def _ranked(packed: bytes, encoding: Encoding) -> dict[bytes, int]:
    hole = encoding.rank_hole
    return {
        token: rank + (0 <= hole <= rank)  # ranks from the hole on are one higher
        for rank, token in enumerate(_tokens(packed))
    }


def unpack_ranks(packed: bytes, encoding: Encoding) -> bytes:
    """The original .tiktoken file, byte for byte."""
    encode = binascii.b2a_base64
    return b"".join(
        [
            b"%b %d\n" % (encode(token, newline=False), rank)
            for token, rank in _ranked(packed, encoding).items()
        ]
    )


def _packed(encoding: Encoding) -> bytes:
    return resources.files("tokenmill.vocab").joinpath(f"{encoding.ranks_name}.ranks").read_bytes()


def bundled_ranks_file(name: str) -> bytes:
    """The bytes of the `.tiktoken` file of a bundled encoding, checked by SHA-256."""
    encoding = get_encoding(name)
    original = unpack_ranks(_packed(encoding), encoding)
    if hashlib.sha256(original).hexdigest() != encoding.sha256:
        raise EncoderError(
            f"the bundled vocabulary {encoding.ranks_name} is damaged (SHA-256 differs)",
            hint="reinstall tokenmill",
        )
    _checked.add(encoding.ranks_name)
    return original


# Checked once in this process: opening the second encoder need not rebuild the file again.
_checked: set[str] = set()


def bundled_ranks(name: str) -> dict[bytes, int]:
    """Token bytes to rank, as tiktoken wants them, from the same checked bytes."""
    encoding = get_encoding(name)
    if encoding.ranks_name not in _checked:
        bundled_ranks_file(name)
    return _ranked(_packed(encoding), encoding)
