"""Encoders behind one small interface: `encode(texts) -> (ids, offsets)`."""

from tokenmill.encoders.exact import EncoderStats, ExactEncoder, measure_gap

__all__ = ["EncoderStats", "ExactEncoder", "measure_gap"]
