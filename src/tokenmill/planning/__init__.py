"""The plan: what will be made, before anything is made.

Input: options and sources.
Does: checks the options, fits the memory, estimates tokens, time and disk space.
Output: `Plan`, which decides every byte, and `Estimate`.
"""
