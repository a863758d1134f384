"""Encoders behind one small interface: `encode(texts) -> (ids, offsets)`."""

from tokenmill.encoders.exact import EncoderStats, ExactEncoder, gap_for_installed_versions

__all__ = ["EncoderStats", "ExactEncoder", "gap_for_installed_versions"]
