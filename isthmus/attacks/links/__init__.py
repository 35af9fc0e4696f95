"""Links: which nodes of a client are connected."""
