"""Units to bytes in the work folder.

Input: the tokens of a unit, and where the streams are before it.
Does: writes every piece to its place.
Output: records of the pieces, and the streams after it.
"""
