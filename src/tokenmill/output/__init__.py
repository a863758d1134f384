"""The dataset on its way to the disk: durable while it grows, published at once.

Input: units of tokens with their places.
Does: locks the folder, keeps the journal, syncs, makes files, commits, recovers after a crash.
Output: the files of a format, the index and `manifest.json`.
"""
