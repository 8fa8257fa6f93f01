"""Records of a run: metrics, progress, timelines."""
