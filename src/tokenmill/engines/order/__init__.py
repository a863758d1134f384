"""The second half of a shuffled job: documents are collected by their keys.

Input: units whose documents are sorted by key, one file each.
Does: reads what belongs to a range of keys from all of them, and sorts it.
Output: units again, which get their places like any other.
"""
