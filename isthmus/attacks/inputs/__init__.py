"""Inputs: what clients' features and labels are, read off what they send."""
