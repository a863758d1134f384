"""Tokenizers: vocabularies, encoders, and the `Tokenizer` for other people's pipelines.

Input: the name of an encoding or a tokenizer file, and batches of text.
Does: reads the vocabulary, decides by proof which encoder may be used, encodes and decodes.
Output: flat arrays of token ids with an offset for each document.
"""
