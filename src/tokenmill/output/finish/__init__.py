"""The files of a job in parts, made on several machines.

Input: units in their places, by one coordinator.
Does: writes down the tasks that make files, and says which part does which.
Output: shares of tasks.
"""
