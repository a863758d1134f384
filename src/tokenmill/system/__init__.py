"""What the machine gives.

Input: nothing of ours but errors, amounts and settings.
Does: writes to the disk in atomic steps that tests can break; stores; signals, memory, /proc.
Output: `disk`, `Store`, limits and readings for every other room.
"""
