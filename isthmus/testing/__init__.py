"""Checks and toy data, shipped so that users can hold their own algorithms to the same standard."""
