"""Tokenizer files that are unusual or damaged: they give the ids of the library, or a sentence."""

from __future__ import annotations

import struct
from pathlib import Path


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def whole(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def block(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def real(field: int, number: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", number)


def piece(name: str | bytes, score: float, kind: int | None = None) -> bytes:
    content = name if isinstance(name, bytes) else name.encode()
    return block(1, block(1, content) + real(2, score) + (b"" if kind is None else whole(3, kind)))


PLAIN = block(3, block(1, b"identity") + whole(3, 1) + whole(4, 0))


LETTERS = b"".join(piece(letter, -100 - i) for i, letter in enumerate("abc\u2581"))


PAIRS = piece("ab", -1) + piece("bc", -2)


def write_model(path: Path, pieces: bytes, normalizer: bytes = PLAIN) -> Path:
    names = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3)
    bytes_ = b"".join(piece(f"<0x{byte:02X}>", 0, 6) for byte in range(256))
    path.write_bytes(names + bytes_ + pieces + block(2, whole(3, 2) + whole(35, 1)) + normalizer)
    return path
