"""What a family of tokenizer files says about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.system.memory import UNBROKEN_FACTOR
from tokenmill.tokenizer.bundled import Encoding, EncodingKind
from tokenmill.tokenizer.proof.rules import MARK, RuleSet, byte_level_steps

Encode = Callable[[str], Sequence[int] | npt.NDArray[np.uint32]]
Decode = Callable[[list[int]], str]

# No vocabulary has that many ids; the libraries would reserve memory for all of them, or abort.
MOST_IDS = 1 << 24


class Family(ABC):
    kind: EncodingKind
    library: str  # whose ids are right by definition
    speed: int  # of the library, to plan with: MB per second and core (benchmarks/models.py)
    # Measured, in bytes of memory for a byte of text (docs/log.md). The library keeps an object
    # for every token of a text that may not be cut.
    reference_factor: int
    unbroken_factor = UNBROKEN_FACTOR
    ranks_only = False  # the pattern and the special tokens are not in the file

    @abstractmethod
    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins like this is of this family."""

    @abstractmethod
    def identify(self, path: Path, content: bytes, pattern: str) -> Encoding:
        """Read the file strictly; a UsageError says what is wrong with it."""

    @abstractmethod
    def open_reference(self, encoding: Encoding) -> Encode:
        """The library's encoder, for which all text is text (law 3)."""

    @abstractmethod
    def open_fast(self, encoding: Encoding, content: bytes) -> Any:
        """gigatoken's encoder for a proven encoding; `content` is the vocabulary's file.

        gigatoken never sees the user's file. It gets the vocabulary, the merges and one splitting
        rule, without the normalizers that the library runs, without special tokens, and without
        added tokens that it would find in other places than the library does.
        """

    @abstractmethod
    def token_bytes(self, encoding: Encoding) -> dict[int, bytes]:
        """What each id stands for."""

    def open_text_decoder(self, encoding: Encoding) -> Decode | None:
        """The library's way from ids to text; None: the text is the bytes of the tokens."""
        return None

    def extra_tokens(self, encoding: Encoding) -> dict[str, int]:
        """The tokens that the file adds to its model, special ones too."""
        return {}


def open_bpe(model: Mapping[str, Any], added: list[dict[str, Any]], rules: RuleSet) -> Any:
    """gigatoken's encoder for a BPE model with the steps of a rule set."""
    from gigatoken import Tokenizer

    normalizer: dict[str, Any] | None
    if rules.kind == "characters":
        normalizer = {"type": "Sequence", "normalizers": list(rules.normalizers)}
        pre_tokenizer = rules.metaspace
    else:
        normalizer = {"type": "NFC"} if rules.form == "NFC" else None
        *splits, level = byte_level_steps(rules.splits)
        steps = {"type": "Sequence", "pretokenizers": [*splits, level]}
        pre_tokenizer = steps if splits else level  # gigatoken refuses a Sequence without Splits
    plain = {
        "added_tokens": added,
        "model": {"type": "BPE", **model},
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
    }
    return Tokenizer.from_json(msgspec.json.encode(plain)).backend


def piece_bytes(piece: str) -> bytes:
    """A piece of SentencePiece: U+2581 is a space, <0x0A> a byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace(MARK, " ").encode()
