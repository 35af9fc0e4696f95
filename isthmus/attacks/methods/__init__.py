"""What single methods send that no other does: generators, users and items, hidden representations, predictions."""
