"""Tokens in their order: pure arithmetic.

Input: the ids of documents, and counts.
Does: separators, splits, the place of every piece, new shards from old ones.
Output: arrays of tokens, and where each of them goes.
"""
