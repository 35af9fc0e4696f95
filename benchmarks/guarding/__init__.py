"""Sections of `guards.py`, one module each."""
