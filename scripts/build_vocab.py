"""Pack tiktoken rank files into the compact form that ships in the package.

    python scripts/build_vocab.py DIRECTORY_WITH_TIKTOKEN_FILES

A rank file is base64 text, one token a line. Packed it is one byte of length per token, then all
tokens' bytes, deflated: a quarter of the size, and the original is rebuilt byte for byte and
checked by SHA-256 each time it is opened.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenmill.tokenizer import ENCODINGS, pack_ranks, unpack_ranks


def main() -> None:
    source = Path(sys.argv[1])
    target = Path(__file__).resolve().parent.parent / "src" / "tokenmill" / "vocab"
    for encoding in {e.ranks_name: e for e in ENCODINGS.values()}.values():
        original = (source / f"{encoding.ranks_name}.tiktoken").read_bytes()
        packed = pack_ranks(original)
        if unpack_ranks(packed, encoding) != original:
            raise SystemExit(f"{encoding.ranks_name}: does not round-trip")
        (target / f"{encoding.ranks_name}.ranks").write_bytes(packed)
        print(f"{encoding.ranks_name}: {len(original)} -> {len(packed)} bytes")


if __name__ == "__main__":
    main()
