"""Characters and short strings on which tokenizers disagree."""

from __future__ import annotations

import functools
import unicodedata

from reliability.r10_right_tokens import PIECES

# All of Unicode's White_Space, and characters that look like white space but are not.
WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
NEARLY_WHITE = "\u200b\u200c\u200d\u2060\ufeff\u180e\x1c\x1d\x1e\x1f\x00"

# Strings that once gave wrong ids.
KNOWN_CASES = [
    "\u306f\u3099", "は\u3099", "\x85", "\x85a", "a\x85", "\u0344\u0344", "½\u0345",
    "hello world\n ", "a<x>  b", "a  123", "a  |", "cafe\u0301\u0323", "café\u0323", "caf\u00e9",
    "abc", "ab", "bc", "\n ", " \n", "\n\n ", "  \n  ", "a \n", "\r\n ", "x\n\n\n", "\u3000\u3000",
    "e\u0301\u0323", "e\u0323\u0301", "a\u0345\u0301", "\u1100\u1161\u11a8", "\uac00\u11a8",
    "\u0f71\u0f72\u0f74", "\u0627\u0654", "\u212b", "\u2126", "\ufb01", "ﷺ", "Ⅷ", "①", "㍿",
    "\u0958", "\u2adc", "\U0001d15e", "\U0001d1bf", "ΐ", "\u0390", "\u1fee", "\u0340\u0341",
]  # fmt: skip

# Strings that mean something inside a vocabulary file.
MARKERS = [
    "▁", "▁▁", "▁▁▁▁", " ▁", "▁ ", "▁a", "a▁b", "Ġ", "Ċ", "Ġthe", "##", "##a", "</w>", "a</w>",
    "<0x41>", "<0x0A>", "<0xE3>", "<0x00>", "<0xFF>", "<0x4", "0x41>", "<unk>", "<s>", "</s>",
    "<pad>", "[UNK]", "[CLS]", "<|endoftext|>", "<|im_start|>", "<tool_call>", "<bos>", "<eos>",
    "\ufffd", "�", "<|", "|>", "<", ">",
]  # fmt: skip

PLAIN = [
    "a", "b", "e", "s", "t", "l", "I", "A", "THE", "The", "the", " the", " a", "in", "ing", "er",
    "hello", "world", "don't", "I'll", "WE'VE", "it's", "'s", "'S", "'ſ", "'t", "'re", "'", "''",
    "1", "12", "123", "1234", "12345", " 1", "  12", "1a", "a1", "3.14", "1,000", "x2", "½", "²",
    ".", ",", "!", "?", "...", "!!", " .", ". ", "-", "--", "/", "//", "://", "_", "__", "(", ")",
    "|", "||", "+", "=", "$", "€", "%", "#", "@", "&", "*", "~", "`", "^", '"', "“", "”", "\\",
    "\\n", "{", "}", "[", "]", "é", "ñ", "ü", "ß", "ø", "Ⅳ", "ǅ", "ʰ", "ª", "ſ", "İ", "ı", "K",
    "字", "漢字", "かな", "カナ", "ｶﾞ", "한국", "ไทย", "नि", "க்ஷ", "العربية", "עִבְרִית", "ру", "Ελ",
    "👍", "👍🏽", "👩‍👩‍👧", "🇫🇷", "☺️", "\u0301", "\u0323", "\u0345", "\u200d", "\ue000",
    "\U0010ffff", "\U000f0000", "\ufffe", "ﬀ", "ﬁ", "ﾊﾟ", "㎏", "ａ", "１", "\u00ad", "\u0600",
]  # fmt: skip

# Code points that only newer versions of Unicode know.
NEWER = [
    "\u088f", "\u0c5c", "\u1acf", "\ua7ce", "\ua7d2", "\ua7f1", "\U00010940", "\U00010ec5",
    "\U00010efa", "\U00011b60", "\U00011db0", "\U00011de0", "\U00016ea0", "\U00016ff2",
    "\U000187f8", "\U00018d80", "\U0001e6c0", "\U0001e6e3", "\U0002b73a", "\U000323b0", "\u20c1",
    "\U0001fac8", "\U0001f6d8", "\U000105c9\U00000307", "\U00011382\U000113c9", "\U00016d67",
    "\u0897", "\u07fd", "\U00010d69", "\U0001e5ee", "\U0001e08f", "\U000113ce", "\U00011b00",
]  # fmt: skip


@functools.cache
def marks() -> tuple[str, ...]:
    """Every combining mark with a class of its own, as Python's tables know it."""
    return tuple(c for c in map(chr, range(0x300, 0x1E900)) if unicodedata.combining(c))


@functools.cache
def changing() -> tuple[str, ...]:
    """Every character that some normal form changes."""
    points = (p for p in range(0x80, 0x2FA20) if not 0xD800 <= p <= 0xDFFF)
    return tuple(
        c
        for c in map(chr, points)
        if not 0xAC00 <= ord(c) <= 0xD7A3 and unicodedata.normalize("NFKD", c) != c
    )


@functools.cache
def numbers() -> tuple[str, ...]:
    """Digits and other numbers of many scripts."""
    points = (p for p in range(0x80, 0x20000) if not 0xD800 <= p <= 0xDFFF)
    return tuple(c for c in map(chr, points) if unicodedata.category(c).startswith("N"))


@functools.cache
def jamo() -> tuple[str, ...]:
    """Hangul letters, alone and as parts of syllables."""
    ranges = ((0x1100, 0x1113), (0x1161, 0x1176), (0x11A8, 0x11C3), (0xAC00, 0xAC40))
    return tuple(chr(p) for first, last in ranges for p in range(first, last))


def pieces() -> list[str]:
    return [*PIECES, *KNOWN_CASES, *MARKERS, *PLAIN, *NEWER]
