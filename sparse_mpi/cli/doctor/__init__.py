"""The doctor: facts of all ranks, what they mean, and what may crash, tried out in child processes of rank 0."""
