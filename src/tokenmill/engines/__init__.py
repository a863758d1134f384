"""Engines: who does which unit when.

Input: a plan, and what is durable already.
Does: reads, encodes and places unit after unit; replaces dead workers, finds the row that kills.
Output: units in their places, each reported to the journal.
"""
