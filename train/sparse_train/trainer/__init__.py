"""The training loop, and what surrounds it: checkpoints, evaluation, plans, the life of a program."""
