"""What a run leaves behind and shows: metrics, progress, timelines."""
