"""Every format: its golden bytes, the tokens and documents it holds, what it refuses."""

from __future__ import annotations

from typing import Any

from tokenmill.formats import FORMATS

SHARDS = "60k"


def options_for(format: str, **more: Any) -> dict[str, Any]:
    """Small shards, where a format has any."""
    return {"format": format} | ({"shard_tokens": SHARDS} if FORMATS[format].sharded else {}) | more
