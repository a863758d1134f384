"""The way back: from a dataset's settings to its encoding, and from ids to bytes and text.

The single place that turns ids into something a person can read. A token is bytes, not text: a
character of several bytes may be spread over tokens, so one token alone is shown with escapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from tokenmill.errors import UsageError, VerificationError, printable
from tokenmill.settings import PlanSettings
from tokenmill.tokenizer.bundled import ENCODINGS, Encoding
from tokenmill.tokenizer.families import family_of
from tokenmill.tokenizer.files import find_encoding


def encoding_of(
    settings: PlanSettings, run: dict[str, Any] | None = None, tokenizer: str | None = None
) -> Encoding:
    """The encoding a dataset was made with; `run` is its run.json, where there is one.

    A bundled encoding is found by its name, a file where the caller or run.json says it lies. The
    vocabulary must be the one the dataset names.
    """
    bundled = settings.tokenizer in ENCODINGS and not settings.pattern
    where = settings.tokenizer if bundled else tokenizer or str((run or {}).get("tokenizer", ""))
    try:
        if not where:
            raise UsageError("run.json does not say where its file was")
        if not bundled and not os.path.exists(where):
            raise UsageError(f"{where}: no such file")
        encoding = find_encoding(where, settings.pattern)
    except UsageError as error:
        raise UsageError(
            f"the tokenizer of this dataset, {settings.tokenizer!r}, cannot be found: "
            f"{error.message}",
            hint="say where its file is now with --tokenizer FILE",
        ) from None
    if encoding.sha256 != settings.tokenizer_sha256:
        raise VerificationError(
            f"the dataset was made with another vocabulary called {settings.tokenizer} "
            f"(SHA-256 {settings.tokenizer_sha256[:16]}..., here {encoding.sha256[:16]}...)",
            hint="give the file that the dataset was made with (--tokenizer FILE); if it is "
            "bundled, "
            "use the version of tokenmill that made the dataset",
        )
    return encoding


class Decoder:
    """Ids to bytes and text. Special ids are shown as their strings."""

    def __init__(self, tokens: dict[int, bytes], specials: dict[int, str]) -> None:
        self._tokens = tokens
        self._specials = specials

    def is_special(self, token: int) -> bool:
        return token in self._specials

    def knows(self, token: int) -> bool:
        return token in self._specials or token in self._tokens

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing for an id that stands for nothing."""
        special = self._specials.get(token)
        return special.encode() if special is not None else self._tokens.get(token, b"")

    def find(self, token: str | bytes) -> int | None:
        """The id of a token, ordinary or special; None: there is none."""
        return self._numbers.get(token.encode() if isinstance(token, str) else token)

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        numbers = {text.encode(): number for number, text in self._specials.items()}
        return numbers | {content: number for number, content in self._tokens.items()}

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 (a character cut in two) as escapes."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="backslashreplace")

    def shown(self, token: int) -> str:
        """One token on one line: line ends and what cannot be printed as escapes."""
        content = self.token_bytes(token)
        if not content:
            return f"<id {token}>"
        return printable(content.decode(errors="backslashreplace"))


def open_decoder(encoding: Encoding, settings: PlanSettings | None = None) -> Decoder:
    """A decoder for an encoding, from the same checked vocabulary that the encoders use.

    `settings` may name special ids of which the vocabulary knows nothing.
    """
    specials = {token: text for text, token in encoding.special_tokens.items()}
    for token in (settings.eot_id, settings.bos_id) if settings is not None else ():
        if token >= 0:
            specials.setdefault(token, f"<id {token}>")
    return Decoder(family_of(encoding).token_bytes(encoding), specials)
