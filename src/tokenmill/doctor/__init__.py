"""The doctor: why a function does not pickle, why a process died, what the machine gives.

Input: a machine, a function, a script or a command that dies.
Does: looks, tries and explains; never changes a script unless asked to.
Output: reports in plain words.
"""
