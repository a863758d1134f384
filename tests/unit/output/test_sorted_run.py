"""Files of sorted documents: what is read is what was written, or an error."""

import numpy as np
import pytest

from reliability.memory_store import MemoryStore
from tokenmill.errors import StorageError
from tokenmill.output.order.sorted_run import (
    BLOCK,
    ENTRY,
    EntryTokens,
    SortedRun,
    buffers_of,
)

DOCUMENTS, LENGTH = 500, 90


def written() -> tuple[EntryTokens, bytes]:
    entries = np.zeros(DOCUMENTS, ENTRY)
    entries["key"] = np.arange(DOCUMENTS, dtype=np.uint64) << np.uint64(55)
    entries["end"] = np.arange(1, DOCUMENTS + 1) * LENGTH
    entries["row"] = np.arange(DOCUMENTS)[::-1]
    stream = EntryTokens(entries, np.arange(DOCUMENTS * LENGTH, dtype=np.uint16))
    empty = EntryTokens(np.zeros(0, ENTRY), np.zeros(0, np.uint16))
    return stream, b"".join(bytes(memoryview(b).cast("B")) for b in buffers_of([stream, empty]))


def read_all(content: bytes, pieces: int) -> EntryTokens:
    """A file of these bytes, read in ranges of keys as a job does."""
    store = MemoryStore()
    store.write_whole("run", content)
    run = SortedRun(store, "run", 2, np.dtype(np.uint16))
    entries, tokens = [], []
    for number in range(pieces):
        bounds = (number << 64) // pieces, ((number + 1) << 64) // pieces
        found, begin = run.between(0, *bounds)
        if len(found):
            entries.append(found)
            tokens.append(run.tokens(0, begin, int(found["end"][-1])))
    return EntryTokens(np.concatenate(entries), np.concatenate(tokens))


@pytest.mark.parametrize("pieces", [1, 2, 7, 300])
def test_what_is_read_is_what_was_written(pieces: int) -> None:
    stream, content = written()
    found = read_all(content, pieces)
    assert np.array_equal(found.entries, stream.entries)
    assert np.array_equal(found.tokens, stream.tokens)


def test_no_flipped_bit_comes_into_a_dataset() -> None:
    _, content = written()
    assert len(content) > 10 * BLOCK
    for at in [*range(16), *range(16, len(content), 997), len(content) - 1]:
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        with pytest.raises(StorageError, match=r"changed since|not a file of|shorter than"):
            read_all(bytes(changed), 3)


def test_a_block_at_the_place_of_another_is_noticed() -> None:
    _, content = written()
    first, second = content[3 * BLOCK : 4 * BLOCK], content[5 * BLOCK : 6 * BLOCK]
    changed = content.replace(first, b"x").replace(second, first).replace(b"x", second, 1)
    assert len(changed) == len(content)
    assert changed != content
    with pytest.raises(StorageError, match="changed since it was written"):
        read_all(changed, 3)
