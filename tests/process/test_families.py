"""The table of tokenizer families is the only place that knows what differs between them."""

from __future__ import annotations

import subprocess
import sys


def test_the_table_needs_no_tokenizer_library() -> None:
    code = (
        "import sys, tokenmill.tokenizer.families\n"
        "heavy = {'tiktoken', 'tokenizers', 'sentencepiece', 'gigatoken', 'pyarrow', 'awkward'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
