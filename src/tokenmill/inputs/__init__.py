"""Inputs: files to batches of text.

Input: paths, globs, addresses and datasets.
Does: finds the files, downloads them, cuts them into segments and reads them.
Output: `Batch`: the bytes of many documents, and where each of them ends.
"""
