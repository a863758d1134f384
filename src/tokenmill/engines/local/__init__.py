"""The engine of one machine: worker processes.

Input: segments to encode.
Does: starts workers from a fork server, hands out work, watches and replaces them.
Output: messages from workers.
"""
