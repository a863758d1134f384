"""An open encoder at work: checked against the reference, and its cache of words bounded.

The workers of the mill and `Tokenizer` both encode through this class.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from tokenmill.errors import EncoderError, VerificationError
from tokenmill.settings import EncoderCheck
from tokenmill.system.proc import resident_bytes
from tokenmill.texts import I64, Texts, count_strings, offsets_of
from tokenmill.tokenizer.encoders.checking import Checker
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokenizer.known import KnownIds, join_known

# The fast encoder's cache of words has no bound of its own (98 million words: 7 GB). The memory of
# the process is looked at after so much text, which takes 10 us.
MEMORY_LOOK_BYTES = 1 << 20
GROWTH_BYTES = 1 << 30
SPECIAL = "special_string "  # before the string, in the name of its count


class EncoderSession:
    """Drops the cache when the process has more than `limit` bytes of memory.

    And only when it has grown by `growth` bytes since the cache was empty: where the limit is
    small, what remains may be over it, and to drop the cache again and again would not help.
    """

    def __init__(
        self,
        encoder: ExactEncoder,
        check: EncoderCheck,
        *,
        limit: int = 0,
        growth: int = GROWTH_BYTES,
    ) -> None:
        self.encoder = encoder
        self.checker = Checker(encoder, check)
        self.reopened = 0
        self.more_stats: dict[str, int] = {}  # of whoever says what is known already
        self.specials: Counter[str] = Counter()  # strings of special tokens that stood in texts
        self._limit, self._growth = limit, growth
        self._empty_bytes = resident_bytes()  # memory of the process while the cache is empty
        self._encoded_bytes = 0
        self._since_look = 0

    @property
    def stats(self) -> dict[str, int]:
        """What the encoder and its check did so far."""
        encoder: dict[str, int] = msgspec.to_builtins(self.encoder.stats)
        checks = {f"checked_{kind}": count for kind, count in self.checker.counts.items()}
        specials = {f"{SPECIAL}{text}": count for text, count in self.specials.items()}
        return {**encoder, **checks, "reopened": self.reopened, **specials, **self.more_stats}

    def count_specials(self, texts: Texts, specials: list[bytes]) -> int:
        """How often strings of special tokens stand in the texts; which ones is noted."""
        found = count_strings(texts, specials)
        for one in specials if found else ():
            if count := count_strings(texts, [one]):
                self.specials[one.decode()] += count
        return found

    def encode(
        self, texts: Texts, place: int | None = None, *, check: bool | None = None
    ) -> tuple[U32, I64]:
        """`place` says where a sample of documents begins. `check`: all of them, or none; by
        default those that are due."""
        ids, offsets = self.encoder.encode(texts)
        if check:
            self.checker.check_all(texts, ids, offsets)
        elif check is None:
            begin = self._encoded_bytes if place is None else place
            self.checker.check(texts, ids, offsets, begin)
        self._encoded_bytes += texts.size
        self._since_look += texts.size
        if self._since_look >= MEMORY_LOOK_BYTES:
            self._since_look = 0
            if resident_bytes() > max(self._limit, self._empty_bytes + self._growth):
                self.drop_cache()
        return ids, offsets

    def complete(self, texts: Texts, known: Sequence[KnownIds], place: int) -> tuple[U32, I64]:
        """Encode what is not known. Known ids are part of the same sample that is checked."""
        missing = np.ones(texts.documents, bool)
        for part in known:
            mine = part.mask(texts.documents)
            missing &= ~mine
            self.encoder.by_reference = []
            try:
                some = texts if mine.all() else texts.only(mine)
                self.checker.check(some, part.ids, offsets_of(part.lengths), place)
            except EncoderError as error:
                raise VerificationError(
                    f"the ids of the old dataset are not those of this text: {error.message}",
                    hint="run the same command again without --reuse",
                ) from None
        if missing.any():
            ids, offsets = self.encode(texts.only(missing), place)
            encoded = KnownIds(np.flatnonzero(missing), ids, np.diff(offsets))
            known = [*known, encoded]
        return join_known(known, texts.documents)

    def drop_cache(self) -> None:
        arrow = sys.modules.get("pyarrow")
        if arrow is not None:  # it keeps memory that it does not use any more
            arrow.default_memory_pool().release_unused()
        self.encoder.reopen()
        self.reopened += 1
        self._empty_bytes = resident_bytes()
