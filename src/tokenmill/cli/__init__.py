"""The command line.

Input: arguments.
Does: runs the command, shows its progress, explains errors.
Output: what is printed, and an exit code.
"""
