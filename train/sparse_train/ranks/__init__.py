"""The ranks of a job: how they start and end together, and hold equal replicas."""
