"""Products with sparse matrices: the operators of graph layers, cached with their transposes."""
