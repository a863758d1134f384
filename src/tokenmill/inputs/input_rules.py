"""What a user says about the inputs: their splits, their kind (`--as`), their text column.

`--as KIND` and `--text-column NAME` hold for all files; with a glob in front (`*.log=text`,
`web/*=content`) for those that match. The first glob that matches a file decides.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import msgspec

from tokenmill.errors import InputError, UsageError
from tokenmill.inputs.split_names import SplitChoice

PatternRules = tuple[tuple[str, str], ...]  # glob and value, in the order given
EVERY = "*"


class InputRules(msgspec.Struct, frozen=True, kw_only=True):
    choice: SplitChoice = SplitChoice()
    val_inputs: tuple[str, ...] = ()
    kinds: PatternRules = ()
    columns: PatternRules = ()
    needed: tuple[str, ...] = ()  # columns that a filter or a template reads; empty: the text's

    def kind_for(self, path: str) -> str:
        """The kind that a file is to be read as; '' where its extension tells."""
        return first_match(self.kinds, path)

    def column_for(self, path: str) -> str:
        return first_match(self.columns, path)

    def refuse_idle(self, files: Sequence[str]) -> None:
        """A glob that matches nothing is a mistake."""
        for option, rules in (("--as", self.kinds), ("--text-column", self.columns)):
            for pattern, value in rules:
                if not any(matches(pattern, file) for file in files):
                    raise InputError(f"{option} '{pattern}={value}': no input matches the pattern")


def matches(pattern: str, path: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")


def first_match(rules: PatternRules, path: str) -> str:
    return next((value for pattern, value in rules if matches(pattern, path)), "")


def parse_rules(option: str, values: Sequence[str]) -> tuple[str, PatternRules]:
    """What holds for all files ('' if nothing), and the rules of globs."""
    general, rules = "", []
    for value in values:
        pattern, equals, name = value.partition("=")
        if not equals:
            if general:
                raise UsageError(
                    f"{option}: given twice for all files ({general}, {value})",
                    hint=f"write {option} 'GLOB={value}' for some of them",
                )
            general = value
        elif not pattern or not name:
            raise UsageError(f"{option} {value!r}: must be NAME or GLOB=NAME")
        else:
            rules.append((pattern, name))
    return general, tuple(rules)
