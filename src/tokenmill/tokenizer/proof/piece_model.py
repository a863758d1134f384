"""A SentencePiece model as plain data: its pieces, and how it changes text.

The `sentencepiece` package does not tell all of this, and its protobuf classes need another
package. The format is sentencepiece_model.proto of its repository. Only the usual form is read:
each field once, with its own type, as every writer of protobuf does it. A ValueError says what is
unusual; such a file is left to the library.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TypeVar, cast

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
SIZES = {FIXED64: 8, FIXED32: 4}

Value = TypeVar("Value", int, bytes)
Message = dict[int, list[int | bytes]]  # a field may be repeated
# Field numbers and the wire types of those that matter here.
MODEL = {1: BYTES, 2: BYTES, 3: BYTES}  # pieces, trainer, normalizer
PIECE = {1: BYTES, 2: FIXED32, 3: VARINT}
TRAINER = {3: VARINT, 24: VARINT, 35: VARINT}
NORMALIZER = {2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT}


class PieceModel:
    def __init__(self, content: bytes) -> None:
        self.kinds: dict[str, int] = {}  # in the order of ids
        self.scores: dict[str, float] = {}
        model = _message(content, MODEL)
        for message in model.get(1, []):
            piece = _message(cast("bytes", message), PIECE)
            text, kind = _one(piece, 1, b"").decode(), _one(piece, 3, NORMAL)
            if not NORMAL <= kind <= BYTE:
                raise ValueError(f"the piece {text!r} is of the unknown kind {kind}")
            self.kinds[text] = kind
            self.scores[text] = struct.unpack("<f", _one(piece, 2, bytes(4)))[0]
        trainer = _message(_one(model, 2, b""), TRAINER)
        self.model_type = MODEL_TYPES.get(_one(trainer, 3, 1), "unknown")
        self.whitespace_as_suffix = bool(_one(trainer, 24, 0))
        self.byte_fallback = bool(_one(trainer, 35, 0))
        normalizer = _message(_one(model, 3, b""), NORMALIZER)
        self.charsmap = bool(_one(normalizer, 2, b""))
        self.add_dummy_prefix = bool(_one(normalizer, 3, 1))
        self.remove_extra_whitespaces = bool(_one(normalizer, 4, 1))
        self.escape_whitespaces = bool(_one(normalizer, 5, 1))

    @cached_property
    def normal(self) -> dict[str, float]:
        """Pieces that text is made of, with their scores."""
        return {p: self.scores[p] for p, kind in self.kinds.items() if kind == NORMAL}

    @property
    def changes_text(self) -> bool:
        """Whether its normalizer does more than to write spaces as U+2581."""
        return self.charsmap or self.remove_extra_whitespaces

    @property
    def user_defined(self) -> list[str]:
        return [piece for piece, kind in self.kinds.items() if kind == USER_DEFINED]


def _one(message: Message, field: int, default: Value) -> Value:
    """The value of a field that must not be repeated."""
    values = message.get(field, [default])
    if len(values) > 1:
        raise ValueError(f"field {field} of a message is repeated")
    return cast("Value", values[0])


def _message(content: bytes, known: dict[int, int]) -> Message:
    """The known fields of a protobuf message, each of which must have its own wire type."""
    found: Message = {}
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        field, wire = key >> 3, key & 7
        value: int | bytes
        if wire == VARINT:
            value, at = _varint(content, at)
        else:
            if wire == BYTES:
                size, at = _varint(content, at)
            elif wire in SIZES:
                size = SIZES[wire]
            else:
                raise ValueError(f"unknown wire type {wire}")
            value, at = content[at : at + size], at + size
            if at > len(content):
                raise ValueError("cut short")
        if known.get(field, wire) != wire:
            raise ValueError(f"field {field} of a message is of another type")
        if field in known:
            found.setdefault(field, []).append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for place, byte in enumerate(message[at : at + 10]):
        number |= (byte & 127) << 7 * place
        if byte < 128 and number < 1 << 64:
            return number, at + place + 1
    raise ValueError("a number is cut short, or has more than 64 bits")
