"""The rule sets for which the fast encoder is proven equal to the reference.

A rule set says how a tokenizer changes and splits text before it merges. This list is explicit:
a tokenizer that is not on it goes to the reference. `docs/exactness.md` has the argument for each
entry; `python -m reliability.farm prove` compares each with the library. `proven.py` decides which
entry a tokenizer belongs to.
"""

from __future__ import annotations

import unicodedata
from importlib import metadata
from typing import Any, Literal, NamedTuple

from tokenmill.tokenizer.bundled import PATTERNS

# NFC is left to gigatoken; "model" is the normalizer of a SentencePiece model.
NormalForm = Literal["", "NFC", "NFKC", "model"]

# The proof reads the source of these versions, and the tables of code points were measured with
# them. With any other version the reference encodes everything.
PROVEN_VERSIONS = {
    "gigatoken": ("0.10.0",),
    "tiktoken": ("0.14.0",),
    "tokenizers": ("0.23.3",),
    "sentencepiece": ("0.2.2", "0.2.3"),
}
NEWEST_UNICODE = 18  # the tables in gap_tables.py know what versions up to this one added

# Name of a byte-level rule set -> the regular expressions of its Split steps, in order. After them
# comes a ByteLevel step without a pattern of its own. gpt2 has no Split: ByteLevel has its pattern.
SPLITS: dict[str, tuple[str, ...]] = {
    "gpt2": (),
    "llama3": (PATTERNS["llama3"],),
    "qwen2": (PATTERNS["qwen2"],),
    "o200k": (PATTERNS["o200k"],),
    "qwen3.5": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "nemo": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "deepseek": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
}
# Byte-level rule sets, and the normal forms with which they are proven: those of models in use.
FORMS: dict[str, tuple[NormalForm, ...]] = {
    "gpt2": ("", "NFC", "NFKC"),
    "digits gpt2": ("", "NFC"),
    "llama3": ("", "NFC"),
    "qwen2": ("", "NFC"),
    "qwen3.5": ("NFC",),
    "o200k": ("",),
    "nemo": ("",),
    "deepseek": ("",),
}
# `--pattern` of a .tiktoken file -> what gigatoken calls a pattern that splits the same.
RANK_SCHEMES = {
    "gpt2": "gpt2", "cl100k": "cl100k", "o200k": "o200k", "llama3": "olmo3", "qwen2": "qwen2",
}  # fmt: skip

SIGNS_AT_CUTS = " ，、。"  # what follows a place at which cuts.py may cut a long text

MARK = "\u2581"  # SentencePiece's letter for a space
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
PREPEND = {"type": "Prepend", "prepend": MARK}
ISOLATED = {"type": "Split", "behavior": "Isolated", "invert": False}


class RuleSet(NamedTuple):
    """What a proven tokenizer does, in the order in which it does it."""

    kind: Literal["ranks", "bytes", "characters"]
    form: NormalForm = ""  # how text is normalized first
    digits: bool = False  # every numeral is a text of its own
    scheme: str = ""  # kind ranks: gigatoken's name of the pattern
    splits: tuple[str, ...] = ()  # kind bytes
    normalizers: tuple[dict[str, Any], ...] = ()  # kind characters: left to gigatoken
    metaspace: dict[str, Any] | None = None  # kind characters: left to gigatoken
    cuttable: bool = False  # a text may be cut at the places of cuts.py


def _rule_sets() -> dict[str, RuleSet]:
    found = {
        f"tiktoken {name}": RuleSet("ranks", scheme=scheme, cuttable=True)
        for name, scheme in RANK_SCHEMES.items()
    }
    for name, forms in FORMS.items():
        digits, pattern = name.startswith("digits "), name.removeprefix("digits ")
        for form in forms:
            found[f"{name} {form}".strip()] = RuleSet(
                "bytes", form=form, digits=digits, splits=SPLITS[pattern], cuttable=True
            )
    found["llama2"] = RuleSet("characters", normalizers=(PREPEND, REPLACE))
    found["gemma"] = RuleSet("characters", normalizers=(REPLACE,))
    for scheme, split in (("always", True), ("always", False), ("first", False), ("never", False)):
        step = {
            "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split,
        }  # fmt: skip
        name = f"metaspace {scheme}{' split' if split else ''}"
        found[name] = RuleSet("characters", metaspace=step)
    found["sentencepiece"] = found["llama2"]
    found["sentencepiece without prefix"] = found["gemma"]
    found["sentencepiece normalized"] = RuleSet("characters", form="model")
    return found


RULE_SETS = _rule_sets()


def byte_level_steps(splits: tuple[str, ...]) -> list[dict[str, Any]]:
    """The pre-tokenizer of a rule set of the kind bytes."""
    steps = [{"pattern": {"Regex": regex}, **ISOLATED} for regex in splits]
    return [*steps, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": not splits}]


def unproven_version(library: str) -> str:
    """What is wrong with the installed versions; '': the proof is about these."""
    if int(unicodedata.unidata_version.partition(".")[0]) > NEWEST_UNICODE:
        return f"Unicode {unicodedata.unidata_version} of this Python is not proven"
    for name in ("gigatoken", library):
        version = metadata.version(name)
        if version not in PROVEN_VERSIONS[name]:
            best = PROVEN_VERSIONS[name][-1]
            return (
                f"{name} {version} is not proven for the fast encoder "
                f"(pip install {name}=={best} is)"
            )
    return ""
