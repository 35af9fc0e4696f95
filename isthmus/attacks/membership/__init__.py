"""Membership: which nodes, or which graphs, were trained on."""
