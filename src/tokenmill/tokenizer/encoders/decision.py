"""Which encoder serves a tokenizer, and why, in words for plans, summaries and run.json."""

from __future__ import annotations

import msgspec

from tokenmill.settings import EncoderChoice
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.fast import fast_verdict
from tokenmill.tokenizer.families import family_of


class EncoderDecision(msgspec.Struct, frozen=True, kw_only=True):
    encoder: str  # gigatoken, or the library that is the reference
    rules: str  # the proven rule set, where gigatoken encodes
    why: str
    speed: int = 0  # MB of text per second and core to expect of the reference; 0: of gigatoken

    def line(self) -> str:
        if self.encoder == "gigatoken":
            return f"gigatoken ({self.why})"
        return f"{self.encoder}, not gigatoken: {self.why}; about {self.speed} MB/s per core"


def decide(encoding: Encoding, choice: EncoderChoice) -> EncoderDecision:
    """The one decision that `prepare`, `plan`, `Tokenizer`, `inspect` and `verify` tell of."""
    verdict = fast_verdict(encoding)
    if choice != "reference" and verdict.rules:
        why = f"proven for the rule set {verdict.rules!r}"
        return EncoderDecision(encoder="gigatoken", rules=verdict.rules, why=why)
    family = family_of(encoding)
    return EncoderDecision(
        encoder=family.library,
        rules="",
        why="--encoder reference" if choice == "reference" else verdict.why_slow,
        speed=family.speed,
    )
