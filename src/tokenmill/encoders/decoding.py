"""The way back: from a dataset's settings to its encoding, and from ids to bytes and text.

The single place that turns ids into something a person can read. A token is bytes, not text: a
character of several bytes may be spread over tokens, so one token alone is shown with escapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenmill.config import PlanSettings
from tokenmill.errors import UsageError, VerificationError
from tokenmill.tokenizer import Encoding, bundled_ranks, get_encoding


def encoding_of(settings: PlanSettings, run: dict[str, Any] | None = None) -> Encoding:
    """The encoding a dataset was made with; `run` is its run.json, where there is one.

    A bundled encoding is found by its name. The vocabulary must be the one the dataset names.
    """
    try:
        encoding = get_encoding(settings.tokenizer)
    except UsageError as error:
        raise UsageError(
            f"the tokenizer of this dataset, {settings.tokenizer!r}, is not at hand",
            hint=error.hint,
        ) from None
    if encoding.sha256 != settings.tokenizer_sha256:
        raise VerificationError(
            f"the dataset was made with another vocabulary of the name {settings.tokenizer} "
            f"(SHA-256 {settings.tokenizer_sha256[:16]}..., here {encoding.sha256[:16]}...)",
            hint="use the version of tokenmill that made it",
        )
    return encoding


class Decoder:
    """Ids to bytes and text. Special ids are shown as their strings."""

    def __init__(self, tokens: dict[int, bytes], specials: dict[int, str]) -> None:
        self._tokens = tokens
        self._specials = specials

    def is_special(self, token: int) -> bool:
        return token in self._specials

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing for an id that stands for nothing."""
        special = self._specials.get(token)
        return special.encode() if special is not None else self._tokens.get(token, b"")

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 (a character cut in two) as escapes."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="backslashreplace")

    def shown(self, token: int) -> str:
        """One token on one line: line ends and what cannot be printed as escapes."""
        content = self.token_bytes(token)
        if not content:
            return f"<id {token}>"
        return printable(content.decode(errors="backslashreplace"))


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, keep: str = "") -> str:
    """Nothing that would move a terminal's cursor or change its colors; `keep` stays as it is."""
    return "".join(
        letter if letter.isprintable() or letter in keep else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    return _ESCAPES.get(letter) or letter.encode("unicode_escape", "surrogatepass").decode()


def open_decoder(encoding: Encoding) -> Decoder:
    """A decoder for a bundled encoding, from the same checked ranks that the encoders use."""
    return Decoder(
        {rank: token for token, rank in bundled_ranks(encoding.name).items()},
        {token: text for text, token in encoding.special_tokens.items()},
    )
