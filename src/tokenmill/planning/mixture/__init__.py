"""Mixtures: several groups of inputs in given shares.

Input: a mix.toml file, and how much each of its sources has.
Does: checks the file, normalises weights, computes how much is taken of each source.
Output: `Mixture`, and a budget and epochs for each source; or an error with the ways out.
"""
