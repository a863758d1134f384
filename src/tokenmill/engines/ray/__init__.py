"""Run the plan on a Ray cluster: actors that hold a worker process each, under one driver.

Input: a run, as every engine sees it, and a cluster.
Does: hands out segments, some ahead; takes reports; replaces what is lost.
Output: units in the shared folder that holds the output. Nothing heavy passes through Ray.
"""
