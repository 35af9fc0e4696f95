"""Attacks on courses: what somebody in a position can find out, or spoil. One attack, one file."""
