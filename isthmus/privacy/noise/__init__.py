"""Noise on messages, and what it promises."""
