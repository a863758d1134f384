"""The output in a store of whole files: nothing grows, is renamed, locked or appended to.

Input: units of tokens, and a store that can create a file if there is none of its name.
Does: puts units as objects, records them, makes the files of them, commits.
Output: the same files, index and `manifest.json` as in a folder.
"""
