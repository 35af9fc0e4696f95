"""What an exchange is, the one training loop, pure aggregation functions. Imports nothing else of Isthmus."""
