"""Plans: which tensors to leave dense, which to reduce sparsely, and by which algorithm."""
