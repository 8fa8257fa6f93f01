"""Fits of the model of `predict` to what was measured, and how good its predictions are."""
