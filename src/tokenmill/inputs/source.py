"""One input file: what is known of it before it is read."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.inputs.remote.address import RemoteFile

SAMPLED = "xxh3-sampled:"  # a fingerprint of parts of a large file
BOM = b"\xef\xbb\xbf"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One input file. `name` is relative to the inputs' common root, or a URL; `path` opens it.

    A remote one has no path until it is downloaded; then `at_hand` makes a local one of it, and
    workers see only that.
    """

    number: int
    name: str
    path: str = ""
    kind: str  # the name of an InputKind
    compression: str = ""
    size: int
    fingerprint: str
    mtime_ns: int = 0
    ctime_ns: int = 0  # changes with every write, and no program can set it
    inode: int = 0
    rows: int = -1  # known from a parquet footer or Arrow's headers; -1 where only reading tells
    chained: bool = False  # Arrow whose dictionaries change on the way: read in order
    remote: RemoteFile | None = None
    as_kind: str = ""  # the kind that the user says (`--as`)
    text_column: str = ""  # its own, where it is another than the plan's
    twin: int = 0  # its number among sources of the same content, by name; in a shuffled job
    mix: str = ""  # the source of the mixture that it belongs to
    split: str = ""  # val: the whole file is for validation (`--val split`, `--val-inputs`)

    def identity(self) -> dict[str, Any]:
        """What binds this source to a plan: not where or since when it is on disk."""
        bound = {"name": self.name, "size": self.size, "fingerprint": self.fingerprint}
        more = {"as": self.as_kind, "text_column": self.text_column, "split": self.split}
        more["mix"] = self.mix
        return bound | {key: value for key, value in more.items() if value}
