"""Whole graphs from the gradient of one: features by spans, then neighbours, then depth-first search."""
