"""The doctor: facts of all ranks, findings from them, and risky calls tried out in child processes of rank 0."""
