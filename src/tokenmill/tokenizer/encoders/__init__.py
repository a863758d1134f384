"""Encoders behind one small interface.

Input: a batch of texts.
Does: encodes with gigatoken where that is proven exact, with the reference library otherwise.
Output: `encode(texts) -> (ids, offsets)`.
"""
