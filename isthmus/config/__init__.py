"""The schema of a course and its loader."""
