"""The training loop and its surroundings: checkpoints, evaluation, plans, the life of a program."""
