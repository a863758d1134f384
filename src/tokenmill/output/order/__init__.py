"""What only a shuffled dataset has in its index.

Input: the index of a shuffled stream, document by document.
Does: sorts it by source and row in bounded memory; counts what a limit has left of each source.
Output: `index/STREAM.rows`, and counts.
"""
