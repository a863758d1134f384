"""Text files: documents as `str.split` gives them, and cuts that no token notices."""

from __future__ import annotations

from support.text import COMPRESS, cut_encoders, novel, small_ranges  # noqa: F401
