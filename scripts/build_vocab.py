"""Pack tiktoken rank files into the compact form that ships in the package.

    python scripts/build_vocab.py DIRECTORY_WITH_TIKTOKEN_FILES

A rank file is base64 text, one token a line. Packed it is one byte of length per token, then all
tokens' bytes, deflated: a quarter of the size, and the original is rebuilt byte for byte and
checked by SHA-256 each time it is opened.
"""

from __future__ import annotations

import base64
import sys
import zlib
from pathlib import Path

from tokenmill.tokenizer.bundled import ENCODINGS, unpack_ranks, write_ranks


def pack_ranks(original: bytes) -> bytes:
    """A .tiktoken file as lengths and bytes in rank order, deflated."""
    tokens = [base64.b64decode(line.split()[0]) for line in original.splitlines()]
    body = bytes(len(token) for token in tokens) + b"".join(tokens)
    return len(tokens).to_bytes(4, "little") + zlib.compress(body, 9)


def main() -> None:
    source = Path(sys.argv[1])
    target = Path(__file__).resolve().parent.parent / "src" / "tokenmill" / "tokenizer" / "vocab"
    for encoding in {e.ranks_name: e for e in ENCODINGS.values()}.values():
        original = (source / f"{encoding.ranks_name}.tiktoken").read_bytes()
        packed = pack_ranks(original)
        if write_ranks(unpack_ranks(packed, encoding)) != original:
            raise SystemExit(f"{encoding.ranks_name}: does not round-trip")
        (target / f"{encoding.ranks_name}.ranks").write_bytes(packed)
        print(f"{encoding.ranks_name}: {len(original)} -> {len(packed)} bytes")


if __name__ == "__main__":
    main()
