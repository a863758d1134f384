"""Damage, small and exact: what R8 and R9 of the scorecard found by trying everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
from support.damage import dataset  # noqa: F401

# In a child: what is looked for is an abort of the whole process.
FLIP_FOOTER = """
import sys
import tempfile
from pathlib import Path
from tokenmill.errors import InputError, SourceError
from tokenmill.planning.counted import _known_nulls
from tokenmill.settings import Reading
from tokenmill.inputs.kinds import segments_of
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.readers.parquet_metadata import open_parquet
path = Path(sys.argv[1])
content = path.read_bytes()
footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
told = set()
for at in range(footer, len(content) - 8):
    for bit in range(8):
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        try:
            list(segments_of(find_sources([path], "text").sources[0], Reading("text")))
            with open_parquet(str(path)) as file:
                _known_nulls(path.name, file.metadata)
        except (InputError, SourceError) as error:
            assert path.name in error.message and error.hint, error.message
            told.add(error.message)
print("\\n".join(told))
"""


def test_no_flipped_bit_of_a_parquet_footer_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": ["some text", "more"] * 5})
    pyarrow.parquet.write_table(table, path, row_group_size=5, store_schema=False)
    child = subprocess.run(
        [sys.executable, "-c", FLIP_FOOTER, path], capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert "histogram size mismatch" in child.stdout, "pyarrow no longer aborts? then simplify"
    assert "row group 1: what the footer says of column 'text' cannot be" in child.stdout
    assert "rows, its footer counts 10" in child.stdout
    assert "bytes of FLOAT" in child.stdout
