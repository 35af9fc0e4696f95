"""What feature columns mean: schemas, their vocabularies, their union, and columns encoded by them."""
