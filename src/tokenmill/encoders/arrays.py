"""How flat arrays reach gigatoken and come back.

gigatoken takes and returns arrays of the `awkward` package. Of that it calls five functions, on
two flat arrays each way; to import all of it costs a quarter of a second in every worker, and
each call some copies. So a process that is ours alone (a worker, the fork server)
gives gigatoken a stand-in with these five functions. A caller's own process never gets it, and
where the stand-in does not do (another version of gigatoken), the real package is used.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import types
from typing import Any

import numpy as np

from tokenmill.texts import I64, Texts

FEW_DOCUMENTS = 32
FEW_BYTES = 1 << 20
STAND_IN = "tokenmill.encoders.arrays.stand_in"


class FlatArray:
    """Values end to end and how many belong to each document."""

    def __init__(self, flat: Any, counts: Any) -> None:
        self.flat = flat
        self.counts = counts


FlatArray.__module__ = "awkward"  # gigatoken looks where the type comes from
FlatArray.__name__ = FlatArray.__qualname__ = "Array"


def use_stand_in() -> None:
    """Only for a process that runs nothing but ours."""
    if "awkward" in sys.modules:
        return
    module = types.ModuleType("awkward", STAND_IN)
    functions = {
        "Array": FlatArray,
        "without_parameters": lambda array: array,
        "flatten": lambda array: array.flat,
        "num": lambda array: array.counts,
        "to_numpy": lambda array: array,
        "unflatten": FlatArray,
    }
    module.__dict__.update(functions)
    sys.modules["awkward"] = module


def uses_stand_in() -> bool:
    return getattr(sys.modules.get("awkward"), "__doc__", None) == STAND_IN


def remove_stand_in() -> None:
    if uses_stand_in():
        del sys.modules["awkward"]


def use_real_awkward() -> None:
    remove_stand_in()
    importlib.import_module("awkward")


def encode_flat(backend: Any, texts: Texts) -> tuple[Any, I64]:
    """Call gigatoken: ids end to end, and offsets.

    `parallel=False`: after a fork the thread pool of gigatoken is dead in the child and a large
    batch waits for it for ever; and one process per core is parallel enough.
    """
    if uses_stand_in():
        array = backend.encode_batch(FlatArray(texts.used(), texts.lengths), parallel=False)
        offsets = np.zeros(texts.documents + 1, np.int64)
        np.cumsum(array.counts, out=offsets[1:])
        return array.flat, offsets
    if _is_small(backend, texts):
        pieces = [backend.encode(texts.document(i)) for i in range(texts.documents)]
        offsets = np.zeros(texts.documents + 1, np.int64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        return np.concatenate(pieces), offsets
    import awkward

    layout = awkward.contents.ListOffsetArray(
        awkward.index.Index64(texts.offsets),
        awkward.contents.NumpyArray(texts.data, parameters={"__array__": "char"}),
        parameters={"__array__": "string"},
    )
    result = backend.encode_batch(awkward.Array(layout), parallel=False).layout
    return np.asarray(result.content.data), np.asarray(result.offsets.data)


def _is_small(backend: Any, texts: Texts) -> bool:
    """A few short documents, which are sooner encoded one by one (40 us each) than made an array of
    awkward's (2.4 ms). Not of SentencePiece: only for BPE are both calls known to agree."""
    few = texts.documents <= FEW_DOCUMENTS and texts.size <= FEW_BYTES
    return few and type(backend).__name__ == "BPETokenizer"


def settle(backend: Any) -> None:
    """Try the stand-in on a few words; give way to the real package if anything is odd."""
    if not uses_stand_in():
        return
    words = [b"hello world", b"", b"good day"]
    texts = Texts(np.frombuffer(b"".join(words), np.uint8), np.array([0, 11, 11, 19], np.int64))
    with contextlib.suppress(Exception):
        ids, offsets = encode_flat(backend, texts)
        whole = [backend.encode(word).tolist() for word in words]
        if [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == whole:
            return
    use_real_awkward()
