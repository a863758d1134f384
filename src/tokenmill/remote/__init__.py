"""Inputs that are not on this machine: hf://, https://, s3:// and whatever fsspec opens."""
