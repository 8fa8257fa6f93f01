"""Reduce the gradients of torch models, bucket by bucket, while the backward pass runs."""
