"""The families of tokenizer files, one module each: tokenizer.json, .tiktoken ranks, SentencePiece.

Input: the content of a tokenizer file.
Does: recognises the file, reads it strictly, opens its library and gigatoken, decodes ids.
Output: an `Encoding`, and what the encoders need for it.
"""

from __future__ import annotations

from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.families.base import Family
from tokenmill.tokenizer.families.sentencepiece import SentencePieceFamily
from tokenmill.tokenizer.families.tiktoken import TiktokenFamily
from tokenmill.tokenizer.families.tokenizer_json import TokenizerJsonFamily

# In the order in which they are asked whether a file is theirs: the last one takes any file.
FAMILIES: tuple[Family, ...] = (TokenizerJsonFamily(), TiktokenFamily(), SentencePieceFamily())
_BY_KIND = {family.kind: family for family in FAMILIES}


def family_of(encoding: Encoding) -> Family:
    return _BY_KIND[encoding.kind]
