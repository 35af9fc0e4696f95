"""Losses and metrics: of classes, of ranks, of several tasks at once."""
