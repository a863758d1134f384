"""Who opens input files, and what is looked at before they are read.

Input: the names of files, or sources.
Does: checks, fingerprints and cuts files; by this process, or wherever an engine works.
Output: sources, segments, and what is wrong with a file.
"""
