"""The tokenizer that goes anywhere: what it pickles as, and that it works wherever it arrives."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.inputs import sample_texts
from support.portable import (
    PICKLERS,
    TEXT,
    _own_cache,  # noqa: F401  # noqa: F401  # noqa: F401
    make,
    unregistered,
)

from tokenmill import Tokenizer
from tokenmill.tokenizer import tokenizer as portable
from tokenmill.tokenizer.bundled import ENCODINGS


def test_threads_that_make_one_from_the_same_object_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one finds its file gone, and puts the vocabulary into the temporary folder."""
    enc = unregistered()
    for attempt in range(5):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache {attempt}"))
        gate = threading.Barrier(8)

        def make_one(gate: threading.Barrier = gate) -> Tokenizer:
            gate.wait()
            return Tokenizer(enc)

        with ThreadPoolExecutor(8) as threads:
            made = [job.result() for job in [threads.submit(make_one) for _ in range(8)]]
        assert len(set(made)) == 1
        assert made[0]._recipe.where == str(tmp_path / f"cache {attempt}" / "tokenmill")
        assert len(list(Path(made[0]._recipe.where).iterdir())) == 2  # ranks and description


KINDS = (
    *ENCODINGS, "tiktoken", "tiktoken with 2000 specials", "tokenizer.json", "tokenizers",
    "transformers", "sentencepiece", "sentencepiece object",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_it_pickles_in_under_10_kb_with_every_pickler_and_encodes_the_same(
    kind: str, tmp_path: Path
) -> None:
    tok, expected = make(kind, tmp_path)
    for used in (False, True):  # also when its encoder is open
        for name, pickler in PICKLERS.items():
            for thing in (tok, tok.map, tok.encode_ordinary):
                payload = pickler.dumps(thing)
                assert len(payload) < 10_000, (kind, name, used)
            again = pickler.loads(pickler.dumps(tok))
            portable._opened.clear()
            assert again.encode_ordinary(TEXT) == expected, (kind, name)
            assert again == tok
            assert (again.n_vocab, again._recipe) == (tok.n_vocab, tok._recipe)
        assert tok.encode_ordinary(TEXT) == expected


def work(tok: Tokenizer) -> tuple[int, str, int]:
    """In a worker: ids, whether an encoder came along, and after it how many are open."""
    came_along = bool(portable._opened)
    ids, _ = tok.encode_flat([text * 3 for text in sample_texts()[:60]])
    again = pickle.loads(pickle.dumps(tok))
    again.encode_ordinary("x")
    return int(ids.sum()), str(came_along), len(portable._opened)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["cl100k_base", "tiktoken", "tokenizers"])
def test_it_works_in_processes_of_every_start_method(
    method: str, kind: str, tmp_path: Path
) -> None:
    portable._opened.clear()
    tok, _ = make(kind, tmp_path)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(work, [tok] * 4).get(timeout=120)
    assert {open_ones for _, _, open_ones in found} == {1}
    assert {total for total, _, _ in found} == {work(tok)[0]}


def test_a_parent_that_uses_it_with_threads_can_fork_at_any_moment() -> None:
    """Without the lock held over a fork, a child may get it locked for ever: it hangs."""
    tok = Tokenizer("gpt2")
    texts = sample_texts()[:60]
    expected = work(tok)[0]
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            tok.encode_flat(texts)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(15):
            with context.Pool(2) as pool:
                found = pool.map_async(work, [tok] * 2).get(timeout=60)
            assert [total for total, _, _ in found] == [expected] * 2
            assert {came for _, came, _ in found} == {"True"}  # opened once, by the parent
    finally:
        stop.set()
        for thread in threads:
            thread.join()
