"""Places for units that were written before their places were known.

Input: records of all units of a job, made by any number of machines.
Does: finds the place of each, and the checksums of its pieces there.
Output: the records that a run on one machine would have made.
"""
