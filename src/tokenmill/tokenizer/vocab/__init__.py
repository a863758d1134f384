"""Bundled ranks, packed by scripts/build_vocab.py."""
