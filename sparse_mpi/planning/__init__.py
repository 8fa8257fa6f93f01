"""Plans: which algorithm reduces which tensors fastest on these ranks, as measured there."""
