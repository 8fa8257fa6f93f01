"""Observers of reducers: reports of steps, metrics for Prometheus, ranges in profiles, the quality of sums."""
