"""The functions for Python.

Input: the keywords of a call.
Does: calls the room that does the work, shows its progress, words messages in keywords.
Output: results and reports as objects.
"""
