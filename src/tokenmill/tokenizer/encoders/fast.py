"""gigatoken behind our interface: flat bytes in, flat ids out, on the calling thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import EncoderError, faults_become, first_line
from tokenmill.system.allocator import give_memory_back
from tokenmill.texts import I64, Texts
from tokenmill.tokenizer.bundled import Encoding, read_vocabulary
from tokenmill.tokenizer.encoders.awkward_stand_in import FlatArray, uses_stand_in
from tokenmill.tokenizer.encoders.cuts import cut_long
from tokenmill.tokenizer.encoders.preparation import Preparation
from tokenmill.tokenizer.encoders.screens import Screen
from tokenmill.tokenizer.families import family_of
from tokenmill.tokenizer.proof.proven import Verdict
from tokenmill.tokenizer.proof.rules import unproven_version

U32 = npt.NDArray[np.uint32]

# A longer document goes to gigatoken in pieces, where that is exact: its memory grows with the
# longest text it is given.
FAST_PIECE_BYTES = 4 << 20
FEW_DOCUMENTS = 32
FEW_BYTES = 1 << 20


class FastEncoderMissingError(EncoderError):
    """The fast encoder is not proven for this tokenizer, or cannot load it."""


class FastEncoder:
    """Exact for all documents but those that `screen` finds.

    It is loaded without special tokens, else it would turn '<|endoftext|>' in a document into the
    separator's id. `reopen` empties its cache of words, which grows without limit (session.py).
    """

    def __init__(self, encoding: Encoding) -> None:
        verdict = fast_verdict(encoding)
        if not verdict.rules:
            raise FastEncoderMissingError(
                f"the fast encoder does not serve {encoding.name}: {verdict.why_slow}",
                hint="use --encoder auto or --encoder reference",
            )
        self.encoding = encoding
        self.screen = Screen(encoding)
        self._preparation = Preparation(encoding)
        self.reopen()

    def reopen(self) -> None:
        self._backend: Any = None
        give_memory_back()
        content = read_vocabulary(self.encoding)
        with faults_become(
            lambda e: FastEncoderMissingError(
                f"gigatoken cannot load {self.encoding.name}: {first_line(e)}",
                hint="use --encoder reference, and report this file",
            )
        ):
            self._backend = family_of(self.encoding).open_fast(self.encoding, content)

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        """Ids of all documents end to end, and the offsets at which each begins and ends."""
        if texts.documents == 0 or texts.size == 0:
            return np.zeros(0, np.uint32), np.zeros(texts.documents + 1, np.int64)
        bounds: I64 | None = None
        if self.encoding.cuttable:
            texts, bounds = cut_long(texts, FAST_PIECE_BYTES)
        texts, inner = self._preparation.prepare(texts)
        ids, offsets = _encode_flat(self._backend, texts)
        for chosen in (inner, bounds):
            offsets = offsets if chosen is None else offsets[chosen]
        return ids, offsets


def _encode_flat(backend: Any, texts: Texts) -> tuple[Any, I64]:
    """Call gigatoken: ids end to end, and offsets.

    `parallel=False`: after a fork the thread pool of gigatoken is dead in the child and a large
    batch waits for it for ever; and one process per core is parallel enough.
    """
    if uses_stand_in():
        array = backend.encode_batch(FlatArray(texts.used(), texts.lengths), parallel=False)
        offsets = np.zeros(texts.documents + 1, np.int64)
        np.cumsum(array.counts, out=offsets[1:])
        return array.flat, offsets
    # A few short documents are encoded one by one (40 us each): to make an awkward array of them
    # takes 2.4 ms. Not for SentencePiece: only for BPE are both calls known to agree.
    few = texts.documents <= FEW_DOCUMENTS and texts.size <= FEW_BYTES
    if few and type(backend).__name__ == "BPETokenizer":
        return join_ids([backend.encode(texts.document(i)) for i in range(texts.documents)])
    import awkward

    layout = awkward.contents.ListOffsetArray(
        awkward.index.Index64(texts.offsets),
        awkward.contents.NumpyArray(texts.data, parameters={"__array__": "char"}),
        parameters={"__array__": "string"},
    )
    result = backend.encode_batch(awkward.Array(layout), parallel=False).layout
    return np.asarray(result.content.data), np.asarray(result.offsets.data)


def join_ids(pieces: list[U32]) -> tuple[U32, I64]:
    """Ids end to end and their offsets, from one array per document."""
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return (np.concatenate(pieces) if pieces else np.zeros(0, np.uint32)), offsets


def fast_verdict(encoding: Encoding) -> Verdict:
    """Whether the fast encoder is proven for this tokenizer, with the versions installed here."""
    wrong = unproven_version(family_of(encoding).library) if encoding.rules else ""
    return Verdict("", wrong) if wrong else Verdict(encoding.rules, encoding.why_slow)
