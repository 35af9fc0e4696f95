"""Graph neural networks: one architecture, one file, named as its paper names it."""
