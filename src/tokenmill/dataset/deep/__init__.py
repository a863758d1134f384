"""`verify --deep`: the tokens of a dataset against the text they were made of.

Input: a dataset and its sources.
Does: reads the text again, encodes it with the reference, and compares token by token.
Output: `DeepReport`.
"""
