"""Arrow IPC, streams and files: the same documents as parquet, and no damage that kills."""

from __future__ import annotations

FORMS = ("stream", "file")
