"""The doctor: all ranks' facts, findings, and risky calls tried out in child processes of rank 0."""
