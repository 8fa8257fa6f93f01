"""The tasks: a model, its batches, their loss and scores, for each kind of data."""
