"""What docs/pickling.md says of the old ways, tried with the libraries as they are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import os, signal, sys
import datasets, tiktoken
from tokenmill import Tokenizer
from tokenmill.tokenizer.bundled import get_encoding, bundled_ranks
e = get_encoding("gpt2")
enc = tiktoken.Encoding("gpt2-by-hand", pat_str=e.pattern, mergeable_ranks=bundled_ranks("gpt2"),
                        special_tokens=e.special_tokens)
def run(function, text="some words", **options):
    ds = datasets.Dataset.from_dict({"text": ["good"] * 20 + [text] + ["good"] * 19})
    mapped = ds.map(function, **{"num_proc": 2, **options})
    print("done", len(mapped), mapped[20]["len"])
"""
PANIC = "text=' ' * 999_999 + 'x'"


def attempt(tmp_path: Path, code: str) -> str:
    script = tmp_path / "train.py"
    body = "\n".join(f"    {line}" for line in code.strip().splitlines())
    script.write_text(f"{BEGIN}\nif __name__ == '__main__':\n{body}\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    return done.stdout + done.stderr


USUAL = """
def tokenize(row):
    ids = enc.encode_ordinary(row["text"])
    return {"ids": ids, "len": len(ids)}
"""


def test_a_native_tokenizer_in_a_closure_is_a_clean_error_in_the_parent(tmp_path: Path) -> None:
    code = """
def make():
    core = enc._core_bpe
    return lambda row: {"len": len(core.encode_ordinary(row["text"]))}
run(make())
"""
    said = attempt(tmp_path, code)
    assert "cannot pickle 'builtins.CoreBPE' object" in said
    assert "abruptly died" not in said


def test_a_global_encoder_under_fork_works(tmp_path: Path) -> None:
    assert "done 40 2" in attempt(tmp_path, f"{USUAL}run(tokenize)")


@pytest.mark.parametrize("processes", [2, 1])
def test_a_million_spaces_end_the_usual_function_in_any_pool(
    processes: int, tmp_path: Path
) -> None:
    """`num_proc=1` is a pool of one: the same message."""
    said = attempt(tmp_path, f"{USUAL}run(tokenize, {PANIC}, num_proc={processes})")
    assert "abruptly died" in said
    caught = USUAL.replace('ids = enc.encode_ordinary(row["text"])', "ids = careful(row)")
    careful = """
def careful(row):
    try:
        return enc.encode_ordinary(row["text"])
    except Exception:
        return []
"""
    assert "abruptly died" in attempt(tmp_path, f"{careful}{caught}run(tokenize, {PANIC})")


def test_and_ours_encodes_them(tmp_path: Path) -> None:
    code = f"run(Tokenizer('gpt2').map, {PANIC}, batched=True)"
    assert "done 40" in attempt(tmp_path, code)


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"])
def test_a_worker_that_ends_is_all_that_the_message_says(death: str, tmp_path: Path) -> None:
    code = f"""
def tokenize(row):
    if row["text"] == "some words":
        {death}
    return {{"len": 1}}
run(tokenize)
"""
    assert "abruptly died" in attempt(tmp_path, code)


def test_what_does_not_pickle_is_never_served_from_the_cache(tmp_path: Path) -> None:
    code = """
core = enc._core_bpe
def tokenize(row):
    return {"len": len(core.encode_ordinary(row["text"]))}
run(tokenize, num_proc=None)
"""
    assert "couldn't be hashed properly" in attempt(tmp_path, code)
    assert "hashed properly" not in attempt(tmp_path, "run(Tokenizer('gpt2').map, num_proc=None)")


def test_a_global_made_under_main_is_not_there_under_spawn(tmp_path: Path) -> None:
    code = """
import multiprocess
multiprocess.set_start_method("spawn", force=True)
made_here = enc
def tokenize(row):
    return {"len": len(made_here.encode_ordinary(row["text"]))}
run(tokenize)
"""
    said = attempt(tmp_path, code)
    assert "NameError" in said
    assert "done 40" not in said
    ours = code.replace("made_here = enc", "made_here = 0").replace(
        "run(tokenize)", "run(Tokenizer('gpt2').map, batched=True)"
    )
    assert "done 40" in attempt(tmp_path, ours)
