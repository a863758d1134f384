"""Do the tests notice a list of proven rules that is too wide?

Each mutant widens the list by one line of the source. `python -m reliability.farm.teeth NAME`
puts the mutant in place and runs tests/unit/tokenizer/test_proven.py, which must fail.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from reliability.mutants import install_change

PROVEN, RULES = "tokenizer/proof/proven.py", "tokenizer/proof/rules.py"
# A file of the package, a text in it, and the text of the mutant: the list without one condition.
WIDER: dict[str, tuple[str, str, str]] = {
    "merges may be listed twice": (
        PROVEN, '_require(len(set(merges)) == len(merges), "a merge is listed twice")', "pass",
    ),
    "prefixes and suffixes of words do not matter": (
        PROVEN, 'for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):',
        "for key in ():",
    ),
    "Digits may leave numbers whole": (
        PROVEN, 'steps[0] == {"type": "Digits", "individual_digits": True}',
        'steps[0].get("type") == "Digits"',
    ),
    "every added token is plain": (
        PROVEN, "not any(token.get(flag) for token in others for flag in flags)", "True",
    ),
    "added tokens may be matched in two ways": (
        PROVEN, 'and len({bool(token.get("normalized")) for token in others}) <= 1', "and True",
    ),
    "added tokens may overlap special ones": (
        PROVEN, 'and not overlap(special, [str(token["content"]) for token in others])', "and True",
    ),
    "added tokens under NFC are plain": (
        PROVEN, "and not _has_normal_form(parsed)\n", "\n",
    ),
    "special tokens that merges build are not looked for": (
        PROVEN, "return (*others, *_spelled(parsed))", "return (*others,)",
    ),
    "bytes may be missing": (
        PROVEN, "_require(there or byte in NEVER_IN_UTF8,", "_require(True,",
    ),
    "pieces may have the same score": (
        PROVEN, '_require(_is_run_group(group, scores), "two pieces have the same score")', "pass",
    ),
    "SentencePiece's normalizer is left out": (
        PROVEN, "if model.changes_text:", "if False:",
    ),
    "user-defined symbols are not looked for": (
        "tokenizer/families/sentencepiece.py", "screened=tuple(symbols),", "screened=(),",
    ),
    "llama3's pattern is that of cl100k": (RULES, '"llama3": "olmo3"', '"llama3": "cl100k"'),
    "all know the same Unicode": (
        "tokenizer/encoders/screens.py", "        return gap_tables.GAP\n", "        return ()\n",
    ),
    "normalizers know the same Unicode": (
        "tokenizer/encoders/screens.py", "gap_tables.SYMBOLS_GAP, newer, numerals)",
        "gap_tables.SYMBOLS_GAP)",
    ),
}  # fmt: skip
TESTS = Path(__file__).parents[2] / "tests" / "unit" / "tokenizer" / "test_proven.py"


def main(name: str) -> int:
    """0: the tests notice."""
    install_change(*WIDER[name])
    import pytest  # after the mutant: the tests import the package

    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory(prefix="tokenmill-teeth-") as folder:
        code = pytest.main([*options, f"--basetemp={folder}/t", str(TESTS)])
    return 0 if code == pytest.ExitCode.TESTS_FAILED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
