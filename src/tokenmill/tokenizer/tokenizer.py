"""A tokenizer that goes anywhere: it pickles as a few strings and opens itself where it is used.

Encoders hold native objects that no pickler takes, megabytes of vocabulary, and locks that a fork
copies in whatever state they are. So a `Tokenizer` holds none of them: only the recipe for
finding its vocabulary again (`identity.py`). Each process opens the encoder when it first needs it,
once, and all copies of the tokenizer in it share that one.
"""

from __future__ import annotations

import itertools
import operator
import os
import re
import threading
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from tokenmill.errors import (
    EncoderError,
    SpecialTokenError,
    TokenmillError,
    UnknownTokenError,
    UsageError,
    faults_become,
    first_line,
)
from tokenmill.settings import EncoderCheck
from tokenmill.texts import I64, Texts, from_bytes, runs
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.decoding import Decoder, open_decoder
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.encoders.fast import U32, fast_verdict, join_ids
from tokenmill.tokenizer.families import family_of
from tokenmill.tokenizer.families.base import Decode
from tokenmill.tokenizer.families.tiktoken import ranks_of
from tokenmill.tokenizer.identity import Recipe, find_again, recipe_for
from tokenmill.tokenizer.mapper import EotPlace, Mapper, NullPolicy, flat_texts, utf8_of
from tokenmill.tokenizer.session import EncoderSession

Special = Literal["all"] | AbstractSet[str]
Disallowed = Literal["all"] | Collection[str]
ENCODE_BYTES = 4 << 20  # handed to the encoder at once: its memory grows with that


class Tokenizer:
    """Text to ids in any process, thread or machine.

    >>> tok = Tokenizer("cl100k_base")           # or a file, or an object of another library
    >>> tok.encode_ordinary("hello world")
    [15339, 1917]
    >>> ds.map(tok.map, batched=True, num_proc=8)
    """

    def __init__(
        self,
        tokenizer: Any = "gpt2",
        *,
        pattern: str = "",
        special_tokens: dict[str, int] | None = None,
        eot: str | int | None = None,
        embed: bool = False,
    ) -> None:
        found = recipe_for(tokenizer, pattern, special_tokens, eot, embed)
        self._recipe = found.recipe
        self._contents = found.contents if embed else ()
        self._encoding: Encoding | None = found.encoding

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_recipe, (tuple(self._recipe), self._contents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._recipe == other._recipe

    def __hash__(self) -> int:
        return hash(self._recipe)

    def __repr__(self) -> str:
        what = self._recipe.where or f"sha256:{self._recipe.sha256[:16]}"
        return f"tokenmill.Tokenizer({what!r})"

    # --- what it is --------------------------------------------------------------------------

    @property
    def encoding(self) -> Encoding:
        if self._encoding is None:
            self._encoding = find_again(self._recipe, self._contents)
        return self._encoding

    @property
    def name(self) -> str:
        return self.encoding.name

    @property
    def n_vocab(self) -> int:
        return self.max_token_value + 1

    @property
    def max_token_value(self) -> int:
        return self.encoding.vocab_size - 1

    @property
    def eot_token(self) -> int:
        if self._recipe.eot < 0:
            names = (
                ", ".join(self.encoding.eot_candidates or self.encoding.special_tokens) or "none"
            )
            raise UsageError(
                f"{self.name} does not define one end-of-text token (it has: {names})",
                hint="pass Tokenizer(..., eot='</s>') or eot=ID; without a separator: "
                "tok.mapper(eot='none')",
            )
        return self._recipe.eot

    @property
    def special_tokens_set(self) -> set[str]:
        return set(self.encoding.special_tokens)

    def is_special_token(self, token: int) -> bool:
        return token in self.encoding.special_tokens.values()

    # Private to tiktoken, and used all the same: by the scripts that everybody copies for FineWeb
    # (`enc._special_tokens["<|endoftext|>"]`) and by its own README, to extend an encoding.

    @property
    def _special_tokens(self) -> dict[str, int]:
        return dict(self.encoding.special_tokens)

    @property
    def _pat_str(self) -> str:
        self._only_of_ranks("_pat_str")
        return self.encoding.pattern

    @property
    def _mergeable_ranks(self) -> dict[bytes, int]:
        self._only_of_ranks("_mergeable_ranks")
        return ranks_of(self.encoding)

    def _only_of_ranks(self, what: str) -> None:
        if not family_of(self.encoding).ranks_only:
            raise AttributeError(f"{what}: {self.name} is no tokenizer of tiktoken's kind")

    @property
    def is_fast(self) -> bool:
        """Whether gigatoken encodes; else the reference does, with the same ids."""
        with _lock:
            return self._opened().session.encoder.is_fast

    @property
    def why_slow(self) -> str:
        """Why the reference encodes, in one sentence; '' where gigatoken does."""
        return fast_verdict(self.encoding).why_slow

    # --- text to ids -------------------------------------------------------------------------

    def encode_ordinary(self, text: str) -> list[int]:
        """All text is text, special tokens' strings too."""
        ids: list[int] = self._ordinary(text).tolist()
        return ids

    def encode(
        self,
        text: str,
        *,
        allowed_special: Special = frozenset(),
        disallowed_special: Disallowed = "all",
    ) -> list[int]:
        """As tiktoken: a special token in the text is an error unless it is allowed or ignored."""
        ids: list[int] = self.encode_to_numpy(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        ).tolist()
        return ids

    def encode_to_numpy(
        self,
        text: str,
        *,
        allowed_special: Special = frozenset(),
        disallowed_special: Disallowed = "all",
    ) -> U32:
        allowed = self._allowed([text], allowed_special, disallowed_special)
        return self._with_specials(text, allowed) if allowed else self._ordinary(text)

    def encode_batch(
        self,
        text: Iterable[str],
        *,
        num_threads: int = 1,
        allowed_special: Special = frozenset(),
        disallowed_special: Disallowed = "all",
    ) -> list[list[int]]:
        """`num_threads` is taken for compatibility: one thread of ours is faster than eight."""
        texts = list(text)  # a generator can be read only once
        allowed = self._allowed(texts, allowed_special, disallowed_special)
        if allowed:
            return [self._with_specials(one, allowed).tolist() for one in texts]
        return self.encode_ordinary_batch(texts)

    def encode_ordinary_batch(
        self, text: Iterable[str], *, num_threads: int = 1
    ) -> list[list[int]]:
        texts, nulls = flat_texts(text)
        if nulls.any():  # tiktoken refuses it; an empty list in its place would go unseen
            row = int(np.flatnonzero(nulls)[0])
            raise TypeError(f"text {row} of {texts.documents} (counted from 0) is null, not str")
        ids, offsets = self.encode_texts(texts)
        return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]

    def encode_flat(self, texts: Any) -> tuple[U32, I64]:
        """Ids of many texts end to end, and where each begins and ends: no list of ints.

        `texts` is a list, a numpy or an Arrow array of text; of null there are no ids.
        """
        return self.encode_texts(flat_texts(texts)[0])

    def encode_texts(self, texts: Texts) -> tuple[U32, I64]:
        """The same for text that is flat already."""
        with _lock, faults_become(_as_ours):
            return self._opened().encode(texts)

    def encode_single_token(self, text_or_bytes: str | bytes) -> int:
        """The id of one token, a special one too; KeyError where there is none."""
        found = self._decoder.find(text_or_bytes)
        if found is None:
            raise UnknownTokenError(f"{self.name} has no token {text_or_bytes!r}")
        return found

    def _allowed(
        self, texts: list[str], allowed_special: Special, disallowed_special: Disallowed
    ) -> set[str]:
        """The special tokens to take for such; an error where a text holds a refused one."""
        known = self.special_tokens_set
        allowed = known if allowed_special == "all" else set(allowed_special)
        refused = known - allowed if disallowed_special == "all" else set(disallowed_special)
        if refused:
            finder = _any_of(frozenset(refused))
            for match in filter(None, map(finder.search, texts)):
                raise SpecialTokenError(
                    f"the text holds the special token {match.group()!r}, which is not allowed "
                    "here",
                    hint="encode_ordinary(text) takes it as text; allowed_special={...} as the "
                    "token",
                )
        return allowed & known

    def _ordinary(self, text: str) -> U32:
        return self.encode_texts(from_bytes([utf8_of(text)]))[0]

    def _with_specials(self, text: str, allowed: AbstractSet[str]) -> U32:
        """Pieces between allowed special tokens are texts of their own, as in tiktoken."""
        ids = self.encoding.special_tokens
        pieces: list[U32] = []
        finder = _any_of(frozenset(ids))
        start = position = 0
        while match := finder.search(text, position):
            if match.group() not in allowed:
                position = match.start() + 1
                continue
            pieces.append(self._ordinary(text[start : match.start()]))
            pieces.append(np.array([ids[match.group()]], np.uint32))
            start = position = match.end()
        pieces.append(self._ordinary(text[start:]))
        return join_ids(pieces)[0]

    # --- ids to text -------------------------------------------------------------------------

    def decode(self, tokens: Iterable[int], errors: str = "replace") -> str:
        """Text of ids. Of a tokenizer.json or a SentencePiece model as its own library says."""
        numbers = self._known(tokens)
        with _lock:
            decode = self._opened().library_decode
            if decode is not None:
                return decode(numbers)
        return b"".join(map(self._decoder.token_bytes, numbers)).decode(errors=errors)

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self.decode_tokens_bytes(tokens))

    def decode_tokens_bytes(self, tokens: Iterable[int]) -> list[bytes]:
        return list(map(self._decoder.token_bytes, self._known(tokens)))

    def decode_single_token_bytes(self, token: int) -> bytes:
        return self.decode_tokens_bytes([token])[0]

    def decode_batch(
        self, batch: Iterable[Iterable[int]], *, errors: str = "replace", num_threads: int = 1
    ) -> list[str]:
        return [self.decode(tokens, errors) for tokens in batch]

    def decode_bytes_batch(
        self, batch: Iterable[Iterable[int]], *, num_threads: int = 1
    ) -> list[bytes]:
        return [self.decode_bytes(tokens) for tokens in batch]

    def _known(self, tokens: Iterable[int]) -> list[int]:
        numbers = [operator.index(token) for token in tokens]
        for number in itertools.filterfalse(self._decoder.knows, numbers):
            raise UnknownTokenError(f"no token of {self.name} has the id {number}")
        return numbers

    @property
    def _decoder(self) -> Decoder:
        with _lock:
            return self._opened().decoder

    # --- functions for other libraries -------------------------------------------------------

    @property
    def map(self) -> Mapper:
        """`ds.map(tok.map, batched=True, num_proc=8)` gives the columns `ids` and `len`."""
        return Mapper(self)

    def mapper(
        self,
        *,
        column: str = "text",
        eot: EotPlace = "end",
        dtype: str = "",
        nulls: NullPolicy = "error",
        keep: Sequence[str] = (),
    ) -> Mapper:
        """`map` with another column, separator, type of the ids, or rule for null; `keep` names
        columns of the batch that come back too."""
        kept = (keep,) if isinstance(keep, str) else tuple(keep)
        return Mapper(self, column, eot, dtype, nulls, kept)

    def _opened(self) -> _OpenTokenizer:
        """Under the lock."""
        opened = _opened.get(self._recipe)
        if opened is None:
            opened = _opened[self._recipe] = _OpenTokenizer(self.encoding)
        return opened


def _from_recipe(recipe: tuple[Any, ...], contents: tuple[bytes, ...]) -> Tokenizer:
    tokenizer = Tokenizer.__new__(Tokenizer)
    tokenizer._recipe = Recipe(*recipe)
    tokenizer._contents = contents
    tokenizer._encoding = None
    return tokenizer


def _as_ours(error: BaseException) -> TokenmillError:
    """A panic in native code is a BaseException: it would end a pool's worker without a word."""
    if isinstance(error, TokenmillError):
        return error
    return EncoderError(f"the encoder failed: {type(error).__name__}: {first_line(error)}")


@lru_cache(maxsize=64)
def _any_of(strings: frozenset[str]) -> re.Pattern[str]:
    longest_first = sorted(strings, key=lambda string: (-len(string), string))
    return re.compile("|".join(map(re.escape, longest_first)))


class _OpenTokenizer:
    """What this process has opened of one vocabulary."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        # A bundled vocabulary was checked over all code points by the tests.
        check: EncoderCheck = "sample" if encoding.path else "none"
        self.session = EncoderSession(ExactEncoder(encoding, "auto"), check)

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        cuts = runs(texts.offsets, ENCODE_BYTES)
        parts = [self.session.encode(texts.slice(*run)) for run in cuts]
        if len(parts) == 1:
            return parts[0]
        lengths = [np.diff(offsets) for _, offsets in parts]
        ids = np.concatenate([np.zeros(0, np.uint32), *(ids for ids, _ in parts)])
        return ids, np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))

    @cached_property
    def decoder(self) -> Decoder:
        return open_decoder(self.encoding)

    @cached_property
    def library_decode(self) -> Decode | None:
        return family_of(self.encoding).open_text_decoder(self.encoding)


_opened: dict[Recipe, _OpenTokenizer] = {}

# One at a time: the fast encoder holds the interpreter anyway. And nobody forks in the middle of
# it: a child gets encoders that are whole, and the lock free, whatever other threads were at.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
