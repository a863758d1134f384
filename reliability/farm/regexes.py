"""The splitting expressions of real models, and expressions close to these."""

from __future__ import annotations

from tokenmill.tokenizer.bundled import PATTERNS

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WHITE_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = PATTERNS["llama3"]
QWEN2 = PATTERNS["qwen2"]
QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _WHITE_END
)
O200K = PATTERNS["o200k"]
NEMO = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _WHITE_END
)
CL100K = PATTERNS["cl100k"]
OLMO3 = LLAMA3.replace(r"\s*[\r\n]+", r"\s*[\r\n]")
DEEPSEEK_NUMBERS = r"\p{N}{1,3}"
DEEPSEEK_CJK = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK_WORDS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
DEEPSEEK = (DEEPSEEK_NUMBERS, DEEPSEEK_CJK, DEEPSEEK_WORDS)

# Expressions of models, by name.
MODELS = {
    "gpt2": GPT2,
    "llama3": LLAMA3,
    "qwen2": QWEN2,
    "qwen35": QWEN35,
    "o200k": O200K,
    "nemo": NEMO,
    "cl100k": CL100K,
    "olmo3": OLMO3,
    "deepseek_numbers": DEEPSEEK_NUMBERS,
    "deepseek_cjk": DEEPSEEK_CJK,
    "deepseek_words": DEEPSEEK_WORDS,
}
# Expressions that differ from a model's in one place.
VARIANTS = {
    "llama3, digits one by one": LLAMA3.replace("{1,3}", "{1}"),
    "llama3, two digits": LLAMA3.replace("{1,3}", "{1,2}"),
    "llama3, all digits": LLAMA3.replace("{1,3}", "+"),
    "llama3, case matters": LLAMA3.replace("(?i:", "(?:"),
    "llama3, no line ends behind signs": LLAMA3.replace(r"[\r\n]*|", "|"),
    "llama3, any white space": LLAMA3.removesuffix(r"|\s+(?!\S)|\s+") + r"|\s+",
    "llama3, end of text": LLAMA3.replace(r"|\s*[\r\n]+", r"|\s++$|\s*[\r\n]+"),
    "gpt2, tiktoken's form": PATTERNS["gpt2"],
    "gpt2, no lookahead": GPT2.removesuffix(r"|\s+(?!\S)|\s+") + r"|\s+",
    "gpt2, case ignored": GPT2.replace("'(?:", "'(?i:"),
    "qwen2, more contractions": QWEN2.replace("'s|", "'s|'n|"),
    "o200k, without the slash": O200K.replace(r"[\r\n/]*", r"[\r\n]*"),
    "nemo, digits in threes": NEMO.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),
    "deepseek words, without marks": DEEPSEEK_WORDS.replace("\\p{M}", ""),
}
# Short expressions that no model uses for everything.
SHORT = {
    "space": " ",
    "white space": r"\s+",
    "one white space": r"\s",
    "a word": r"\w+",
    "a letter": r"\p{L}",
    "digits": r"\d+",
    "a number": r"\p{N}",
    "signs": r"[^\w\s]+",
    "a line": r"[^\n]+",
    "a space and a word": r" ?[^\s]+|\s+",
    "three characters": r".{1,3}",
    "an upper-case letter": r"\p{Lu}",
}
ALL = {**MODELS, **VARIANTS, **SHORT}
