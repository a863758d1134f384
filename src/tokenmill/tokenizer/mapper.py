"""Batches in, ids out: the function that `datasets.map`, Ray Data and Spark call in their workers.

A batch is whatever the caller's library hands over: a dict of lists or numpy arrays, one row, an
Arrow table or record batch. Text becomes two flat arrays, ids come back as one; no Python list of
ints is ever built. What comes back has the shape of what went in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tokenmill.errors import BadRowError, TooLargeError, UsageError
from tokenmill.texts import I64, Texts, from_arrow, from_bytes
from tokenmill.tokenizer.encoders.fast import U32

if TYPE_CHECKING:
    import pyarrow

    from tokenmill.tokenizer.tokenizer import Tokenizer

EotPlace = Literal["end", "start", "none"]
NullPolicy = Literal["error", "keep", "empty"]
DTYPES = ("uint16", "uint32", "int32", "int64")
ARROW_LIST_LIMIT = (1 << 31) - 1  # ids in one list array


@dataclass(frozen=True, repr=False)
class Mapper:
    """`ds.map(tok.map, batched=True)`; made by `Tokenizer.map` and `Tokenizer.mapper`."""

    tokenizer: Tokenizer
    column: str = "text"
    eot: EotPlace = "end"
    dtype: str = ""
    nulls: NullPolicy = "error"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, known in (
            ("eot", self.eot, get_args(EotPlace)),
            ("dtype", self.dtype, ("", *DTYPES)),
            ("nulls", self.nulls, get_args(NullPolicy)),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r}: not one of {', '.join(filter(None, known))}")
        if not isinstance(self.column, str):
            raise UsageError(f"column {self.column!r}: not a name; a Tokenizer maps one column")
        for name in self.keep:
            if name in ("ids", "len"):
                raise UsageError(
                    f"keep: {name!r} is a column of the result", hint="rename yours before"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain values only: `datasets` hashes them, and equal mappers must hash alike.
        options = (self.column, self.eot, self.dtype, self.nulls, self.keep)
        return Mapper, (self.tokenizer, *options)

    def __repr__(self) -> str:
        names = ("column", "eot", "dtype", "nulls", "keep")
        return f"{self.tokenizer!r}.mapper({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"

    def __call__(self, batch: Any) -> Any:
        """One row, or a batch of them."""
        if _is_arrow(batch):
            return self._arrow(batch)
        try:
            value = _still_arrow(batch, self.column)
            value = batch[self.column] if value is None else value
        except (KeyError, IndexError):
            raise _no_column(self.column, list(batch)) from None
        except TypeError:
            raise UsageError(
                f"cannot take a batch of the type {type(batch).__name__}",
                hint="give rows with columns: a dict, a pyarrow.Table or a RecordBatch",
            ) from None
        kept = self._kept(batch, list(batch))
        if value is None or isinstance(value, str):
            return {**kept, **self._row(value)}
        if isinstance(value, bytes) or not isinstance(value, Iterable):
            raise BadRowError(f"column {self.column!r}: {type(value).__name__}, not text")
        texts, nulls = self._texts(value)
        ids, offsets = self._encode(texts, nulls)
        rows: list[Any] = [ids[a:b] for a, b in itertools.pairwise(offsets)]
        if self.nulls == "keep":
            for index in np.flatnonzero(nulls).tolist():
                rows[index] = None
        found = {**kept, "ids": rows, "len": np.diff(offsets)}
        # A frame stays a frame: `datasets` hands over one of one row where the map is not batched.
        return type(batch)(found) if _is_frame(batch) else found

    def in_arrow(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Record batches to record batches: what Spark's `mapInArrow` takes."""
        for batch in batches:
            yield self(batch)

    # --- the three shapes --------------------------------------------------------------------

    def _row(self, value: str | None) -> dict[str, Any]:
        if value is None and self.nulls == "keep":
            return {"ids": None, "len": 0}
        if value is None:
            texts, nulls = self._texts([None])
        else:  # not through Arrow: that takes 150 us, as long as all the rest of a short row
            texts, nulls = from_bytes([utf8_of(value)]), np.zeros(1, bool)
        ids, _ = self._encode(texts, nulls)
        return {"ids": ids, "len": len(ids)}

    def _arrow(self, batch: Any) -> Any:
        import pyarrow

        if batch.schema.names.count(self.column) != 1:
            raise _no_column(self.column, batch.schema.names)
        kept = self._kept(batch, batch.schema.names)
        texts, nulls = self._texts(batch.column(self.column))
        ids, offsets = self._encode(texts, nulls)
        if int(offsets[-1]) > ARROW_LIST_LIMIT:
            raise TooLargeError(
                f"a batch of {batch.num_rows} rows has {int(offsets[-1])} tokens, an Arrow list "
                f"array holds {ARROW_LIST_LIMIT}",
                hint="use a smaller batch_size",
            )
        mask = pyarrow.array(nulls) if self.nulls == "keep" and nulls.any() else None
        lists = pyarrow.ListArray.from_arrays(
            pyarrow.array(offsets.astype(np.int32)), pyarrow.array(ids), mask=mask
        )
        columns = {**kept, "ids": lists, "len": pyarrow.array(np.diff(offsets))}
        if isinstance(batch, pyarrow.RecordBatch):
            return pyarrow.RecordBatch.from_pydict(columns)
        return pyarrow.table(columns)

    def _kept(self, batch: Any, names: list[str]) -> dict[str, Any]:
        """The columns that come back too."""
        for name in self.keep:
            if names.count(name) != 1:
                raise _no_column(name, names)
        return {name: batch[name] for name in self.keep}

    # --- text to ids -------------------------------------------------------------------------

    def _texts(self, value: Any) -> tuple[Texts, Any]:
        """Flat text, and which rows are null: those count as empty text here."""
        texts, nulls = flat_texts(value, self.column)
        if self.nulls == "error" and nulls.any():
            row = int(np.flatnonzero(nulls)[0])
            raise BadRowError(
                f"column {self.column!r} is null in row {row} of a batch of {texts.documents} "
                "(counted from 0), and null is not an empty text",
                hint="remove such rows before, or use tok.mapper(nulls='keep'): ids are null "
                "there; or nulls='empty': as empty text",
            )
        return texts, nulls

    def _encode(self, texts: Texts, nulls: Any) -> tuple[Any, I64]:
        ids, offsets = self.tokenizer.encode_texts(texts)
        skip = nulls if self.nulls == "keep" else None
        ids, offsets = with_eot(ids, offsets, self.eot, self._eot_id(), skip)
        return ids.astype(self._dtype(), copy=False), offsets

    def _eot_id(self) -> int:
        return self.tokenizer.eot_token if self.eot != "none" else -1

    def _dtype(self) -> str:
        largest = max(self.tokenizer.max_token_value, self._eot_id())
        if not self.dtype:
            return "uint16" if largest < 1 << 16 else "uint32"
        if largest > np.iinfo(self.dtype).max:
            raise UsageError(f"dtype {self.dtype}: ids go up to {largest}", hint="use uint32")
        return self.dtype


def _no_column(name: str, names: list[str]) -> UsageError:
    count = names.count(name)
    return UsageError(
        f"{count or 'no'} column{'s' * (count > 1)} {name!r}; there are: "
        f"{', '.join(map(str, names)) or 'none'}",
        hint="name it: tok.mapper(column=..., keep=[...])",
    )


def with_eot(
    ids: U32, offsets: I64, place: EotPlace, eot: int, skip: Any = None
) -> tuple[U32, I64]:
    """The separator at the end or the start of every document but those to skip."""
    if place == "none":
        return ids, offsets
    count = len(offsets) - 1
    added = np.ones(count, np.int64) if skip is None else (~np.asarray(skip)).astype(np.int64)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.diff(offsets) + added, out=bounds[1:])
    marks = bounds[1:] - 1 if place == "end" else bounds[:-1]
    out = np.empty(int(bounds[-1]), np.uint32)
    is_text = np.ones(len(out), bool)
    is_text[marks[added == 1]] = False
    out[is_text] = ids
    out[~is_text] = eot
    return out, bounds


def _is_arrow(batch: Any) -> bool:
    """Whether it is a table or a record batch; the library is not imported to find out."""
    return type(batch).__module__.startswith("pyarrow") and hasattr(batch, "num_columns")


def _still_arrow(batch: Any, column: str) -> Any:
    """A column of a batch of `datasets` that nobody has turned into a list of strings yet: the
    Arrow data under it, which spares making those strings and unmaking them."""
    if type(batch).__name__ == "LazyBatch" and column in getattr(batch, "keys_to_format", ()):
        table = getattr(batch, "pa_table", None)
        if table is not None and column in table.column_names:
            return table.column(column)
    return None


def _is_frame(batch: Any) -> bool:
    return type(batch).__name__ == "DataFrame" and not isinstance(batch, Mapping)


def flat_texts(value: Any, column: str = "text") -> tuple[Texts, Any]:
    """A column of text as flat bytes, and which of its rows are null."""
    import pyarrow

    array = value if isinstance(value, pyarrow.Array | pyarrow.ChunkedArray) else _to_arrow(value)
    if isinstance(array, list):  # lone surrogates: as tiktoken replaces them
        documents = [_utf8(text, index, column) for index, text in enumerate(array)]
        nulls = np.array([_is_null(text) for text in array], bool)
        return from_bytes(documents), nulls
    _refuse_type(array, column)
    if isinstance(array, pyarrow.ChunkedArray):
        one = array.num_chunks == 1
        array = array.chunk(0) if one else array.cast(pyarrow.large_string()).combine_chunks()
    texts, nulls = from_arrow(array)
    if not isinstance(value, list):  # a Python str is Unicode; what came as Arrow may be anything
        for row, fault in texts.faults().items():
            raise BadRowError(f"column {column!r}, row {row} of a batch: {fault}")
    return texts, nulls


def _to_arrow(value: Any) -> Any:
    """As Arrow, or as a list where Python text is not Unicode."""
    import pyarrow

    items = value if isinstance(value, list | tuple | np.ndarray) else list(value)
    if isinstance(items, np.ndarray):
        items = items.astype(object, copy=False)
    try:
        return pyarrow.array(items, from_pandas=True)
    except UnicodeEncodeError:
        return list(items)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise BadRowError(f"a batch's texts are not all text: {error}") from None


def _is_null(text: Any) -> bool:
    """As Arrow takes what pandas has: None, NaN, NA."""
    return text is None or type(text).__name__ == "NAType" or text != text


def _utf8(text: Any, row: int, column: str) -> bytes:
    if _is_null(text):
        return b""
    if not isinstance(text, str):
        raise BadRowError(f"column {column!r}, row {row}: {type(text).__name__}, not text")
    return utf8_of(text)


def utf8_of(text: str) -> bytes:
    """A lone surrogate becomes U+FFFD, a pair of them one letter: as tiktoken does it."""
    if not isinstance(text, str):
        raise TypeError(f"a text is of the type {type(text).__name__}, not str")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _refuse_type(array: Any, column: str) -> None:
    import pyarrow

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    text_types = pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.null()
    if kind not in text_types:
        raise UsageError(
            f"column {column!r} is of type {array.type}, not text",
            hint="name the column with the text: tok.mapper(column=...)",
        )
