"""Finished datasets, read again to make others of them.

Input: the folder of a finished dataset.
Does: compares every byte with the manifest before it is used; takes separators away.
Output: the ids of documents.
"""
