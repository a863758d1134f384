"""Files on the Hugging Face Hub, in object stores and on web servers.

Input: an address.
Does: lists, pins to a commit or ETag, and reads, with retries.
Output: files with their sizes and checksums, and their bytes.
"""
