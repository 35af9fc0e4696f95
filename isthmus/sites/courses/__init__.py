"""Courses at a server: agreement, rounds over the network, their life, and results on their way home."""
