"""Links that lie in an output folder: nothing is written or removed through one.

A folder may come from somebody else, in an archive or from the Hub. A link in place of the work
folder, or of a file in it, would let `prepare` write to, rename or remove what lies elsewhere.
Readers follow links to files: a download from the Hub is a folder of links into its cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tokenmill.errors import RefusedError
from tokenmill.formats import FORMATS
from tokenmill.storage import WORK

INDEX = "index"


def refuse_links(output: Path) -> None:
    """The output folder itself may be a link: its owner has made it so."""
    for path in _touched(output):
        if os.path.islink(path):
            raise RefusedError(
                f"{path}: a link, and nothing is written or removed through one",
                hint="remove the link, or give another folder with -o",
            )


def _touched(output: Path) -> Iterator[str]:
    """Whatever `prepare` opens to write, or removes with all that is in it."""
    yield from (str(output / name) for name in (WORK, INDEX))
    for format in ("", *FORMATS):  # a manifest names files in no other folders
        yield from (
            str(output / format / split) for split in ("", "train", "val") if format or split
        )
    for folder, folders, files in os.walk(output / WORK):
        yield from (os.path.join(folder, name) for name in (*folders, *files))
