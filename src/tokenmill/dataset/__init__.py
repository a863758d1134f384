"""Finished datasets.

Input: the folder of a dataset, or token files that another tool made.
Does: opens, inspects, verifies, exports to another format, imports.
Output: tokens and documents, reports, another dataset.
"""
