"""Ranks that go on after one has failed."""
