"""Sections of the benchmark of what methods give away: one module for a theme, each with its `SECTIONS`."""
