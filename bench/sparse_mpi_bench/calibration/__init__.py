"""Fits of the model of `predict` to measurements, and the errors of its predictions."""
