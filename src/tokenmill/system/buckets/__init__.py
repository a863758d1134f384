"""Buckets of S3 and of GCS as stores of whole files.

Input: an address (`s3://bucket/folder`), and credentials from the environment.
Does: reads ranges, writes files in parts, creates a file if nothing has its name.
Output: `Bucket`, an `ObjectStore`; faults of the store as sentences that say what to do.
"""
