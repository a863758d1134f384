"""Readers: one for each kind of file.

Input: a segment of a file.
Does: reads the text column; a row that is null, not UTF-8 or not JSON goes to quarantine.
Output: batches of text.
"""
