"""A silo's side: what it takes part in, what it says of its data, what it keeps for itself."""
