"""What the machine gives.

Input: nothing of ours but errors, amounts and settings.
Does: writes to the disk in atomic steps that tests can break; signals, memory, cores, /proc.
Output: `disk`, limits and readings for every other room.
"""
