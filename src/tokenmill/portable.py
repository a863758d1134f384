"""A tokenizer that goes anywhere: it pickles as a few strings and opens itself where it is used.

Encoders hold native objects that no pickler takes, megabytes of vocabulary, and locks that a fork
copies in whatever state they are. So a `Tokenizer` holds none of them: only the recipe for
finding its vocabulary again (`recipes.py`). Each process opens the encoder when it first needs it,
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
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from tokenmill.encoders import ExactEncoder
from tokenmill.encoders.decoding import Decoder, open_decoder
from tokenmill.encoders.fast import U32
from tokenmill.encoders.reference import join_ids
from tokenmill.errors import (
    EncoderError,
    SpecialTokenError,
    TokenmillError,
    UnknownTokenError,
    UsageError,
    faults_become,
    first_line,
)
from tokenmill.gap_cache import gap_for
from tokenmill.mapping import EotPlace, Mapper, NullPolicy, flat_texts, utf8_of
from tokenmill.memory import resident_bytes
from tokenmill.recipes import Recipe, find_again, recipe_for
from tokenmill.texts import I64, Texts, from_bytes
from tokenmill.tokenizer import Encoding
from tokenmill.vocabulary_files import (
    load_sentencepiece,
    load_tokenizers,
    ranks_of,
    read_vocabulary,
)

Special = Literal["all"] | AbstractSet[str]
BATCH_BYTES = 4 << 20  # handed to the encoder at once: its memory grows with that
# The fast encoder's cache of words has no bound of its own (98 million words: 7 GB). It is looked
# at after so much text, and dropped when the process has grown by so much since it was opened.
LOOK_BYTES = 32 << 20
GROWTH_BYTES = 1 << 30
# A vocabulary that is not bundled: one document in so much text is encoded again by the reference.
CHECK_EVERY_BYTES = 64 << 20
CHECK_BYTES = 16 << 10


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
        found = recipe_for(
            tokenizer, pattern=pattern, special_tokens=special_tokens, eot=eot, embed=embed
        )
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
                f"{self.name} does not settle which token ends a document (it has: {names})",
                hint="say it: Tokenizer(..., eot='</s>') or eot=ID; or no separator: "
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
        if self.encoding.kind != "tiktoken":
            raise AttributeError(f"{what}: {self.name} is no tokenizer of tiktoken's kind")

    @property
    def is_fast(self) -> bool:
        """Whether gigatoken encodes; else the reference does, with the same ids."""
        with _lock:
            return self._opened().encoder.is_fast

    def make_fast(self) -> bool:
        """For a file with rules that we do not know: compare the encoders on every code point (a
        minute), and keep the result in the user's cache for every process from now on."""
        with _lock:
            gap_for(self.encoding, lambda _: None)
            _opened.pop(self._recipe, None)
            return self.is_fast

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
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[int]:
        """As tiktoken: a special token's string is an error unless allowed or not minded."""
        ids: list[int] = self.encode_to_numpy(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special
        ).tolist()
        return ids

    def encode_to_numpy(
        self,
        text: str,
        *,
        allowed_special: Special = frozenset(),
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> U32:
        allowed, refused = self._special(allowed_special, disallowed_special)
        self._checked([text], refused)
        return self._with_specials(text, allowed) if allowed else self._ordinary(text)

    def encode_batch(
        self,
        text: Iterable[str],
        *,
        num_threads: int = 1,
        allowed_special: Special = frozenset(),
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[list[int]]:
        """`num_threads` is taken for compatibility: one thread of ours is faster than eight."""
        allowed, refused = self._special(allowed_special, disallowed_special)
        texts = self._checked(list(text), refused)  # a generator can be read only once
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
        with _lock:
            decoder = self._opened().decoder
        found = decoder.find(text_or_bytes)
        if found is None:
            raise UnknownTokenError(f"{self.name} has no token {text_or_bytes!r}")
        return found

    def _special(
        self, allowed_special: Special, disallowed_special: Literal["all"] | Collection[str]
    ) -> tuple[set[str], frozenset[str]]:
        """Special tokens to be taken for such, and strings that must not be there."""
        known = self.special_tokens_set
        allowed = known if allowed_special == "all" else set(allowed_special)
        refused = known - allowed if disallowed_special == "all" else set(disallowed_special)
        return allowed & known, frozenset(refused)

    def _checked(self, texts: list[str], refused: frozenset[str]) -> list[str]:
        if refused:
            finder = _any_of(refused)
            for match in filter(None, map(finder.search, texts)):
                raise SpecialTokenError(
                    f"the text holds the special token {match.group()!r}, which is not allowed "
                    "here",
                    hint="encode_ordinary(text) takes it as text; allowed_special={...} as the "
                    "token",
                )
        return texts

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
        numbers = [operator.index(token) for token in tokens]
        if self.encoding.kind == "tiktoken":
            return self.decode_bytes(numbers).decode(errors=errors)
        self._refuse_unknown(numbers)
        with _lock:
            return str(self._opened().library_decode(numbers))

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self.decode_tokens_bytes(tokens))

    def decode_tokens_bytes(self, tokens: Iterable[int]) -> list[bytes]:
        numbers = [operator.index(token) for token in tokens]
        self._refuse_unknown(numbers)
        with _lock:
            decoder = self._opened().decoder
        return [decoder.token_bytes(number) for number in numbers]

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

    def _refuse_unknown(self, numbers: list[int]) -> None:
        with _lock:
            decoder = self._opened().decoder
        for number in numbers:
            if not decoder.knows(number):
                raise UnknownTokenError(f"no token of {self.name} has the id {number}")

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

    def _opened(self) -> _Opened:
        """Under the lock."""
        opened = _opened.get(self._recipe)
        if opened is None:
            opened = _opened[self._recipe] = _Opened(self.encoding)
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


# --- what a process has opened ---------------------------------------------------------------


class _Opened:
    """The encoder of one vocabulary in this process."""

    def __init__(self, encoding: Encoding) -> None:
        gap = gap_for(encoding, lambda _: None, measure=False)
        self.encoding = encoding
        self.encoder = ExactEncoder(encoding, "reference" if gap is None else "auto", gap or ())
        self._decoder: Decoder | None = None
        self._library: Any = None
        self._base = resident_bytes()
        self._since_look = 0
        self._since_check = CHECK_EVERY_BYTES if encoding.path else -(1 << 62)

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        runs = list(texts.runs(BATCH_BYTES))
        if len(runs) == 1:
            return self._run(texts)
        ids: list[U32] = []
        lengths: list[I64] = []
        for start, stop in runs:
            found, offsets = self._run(texts.slice(start, stop))
            ids.append(found)
            lengths.append(np.diff(offsets))
        bounds = np.zeros(texts.documents + 1, np.int64)
        if lengths:
            np.cumsum(np.concatenate(lengths), out=bounds[1:])
        return (np.concatenate(ids) if ids else np.zeros(0, np.uint32)), bounds

    def _run(self, texts: Texts) -> tuple[U32, I64]:
        ids, offsets = self.encoder.encode(texts)
        self._since_check += texts.size
        if self._since_check >= CHECK_EVERY_BYTES and self.encoder.is_fast and texts.size:
            self._since_check = 0
            index = int(np.flatnonzero(texts.lengths)[0])
            self.encoder.check(texts, ids, offsets, index, CHECK_BYTES)
        self._since_look += texts.size
        if self._since_look >= LOOK_BYTES:
            self._since_look = 0
            self._drop_cache_if_grown()
        return ids, offsets

    def _drop_cache_if_grown(self) -> None:
        if resident_bytes() - self._base > GROWTH_BYTES:
            self.encoder.reopen()
            self._base = resident_bytes()

    @property
    def decoder(self) -> Decoder:
        if self._decoder is None:
            self._decoder = open_decoder(self.encoding)
        return self._decoder

    def library_decode(self, numbers: list[int]) -> str:
        content = read_vocabulary(self.encoding)
        if self.encoding.kind == "sentencepiece":
            self._library = self._library or load_sentencepiece(content, self.encoding.path)
            return str(self._library.decode(numbers))
        self._library = self._library or load_tokenizers(content, self.encoding.path)
        return str(self._library.decode(numbers, skip_special_tokens=False))


_opened: dict[Recipe, _Opened] = {}

# One at a time: the fast encoder holds the interpreter anyway. And nobody forks in the middle of
# it: a child gets encoders that are whole, and the lock free, whatever other threads were at.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
