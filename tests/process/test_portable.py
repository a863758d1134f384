"""The tokenizer that goes anywhere: what it pickles as, and that it works wherever it arrives."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from support.portable import (
    _own_cache,  # noqa: F401
)

from tokenmill import Tokenizer


def test_a_fresh_process_needs_no_network_and_no_cache_for_a_bundled_one(tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(pickle.dumps(Tokenizer("cl100k_base").encode_ordinary))
    code = (
        "import pickle, socket, sys\n"
        "socket.socket.connect = lambda *_: sys.exit('network')\n"
        "print(pickle.load(open(sys.argv[1], 'rb'))('hello world'))"
    )
    env = {**os.environ, "XDG_CACHE_HOME": "/nonexistent", "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(payload)], capture_output=True, text=True, env=env
    )
    assert done.stdout.strip() == "[15339, 1917]", done.stderr


def test_importing_and_pickling_it_opens_no_encoder() -> None:
    code = (
        "import sys, pickle, tokenmill\n"
        "tok = pickle.loads(pickle.dumps(tokenmill.Tokenizer('gpt2')))\n"
        "assert tok.eot_token == 50256 and tok.n_vocab == 50257\n"
        "print([m for m in ('gigatoken', 'tiktoken', 'awkward', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
