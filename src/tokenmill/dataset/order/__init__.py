"""A finished dataset in another order, or a part of it, for `export`.

Input: the streams of a dataset.
Does: has its documents sorted by new keys (`output/order/reordering.py`), on all workers.
Output: streams in the work folder, and the index that goes with them.
"""
