"""Files and texts: written whole or not at all, bounded and checked when they are read."""
