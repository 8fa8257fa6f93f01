"""Planning: which tensors to leave dense, which to reduce sparsely, and how."""
