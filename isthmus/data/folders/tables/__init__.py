"""Tables of own folders: reading, what their columns mean, writing."""
