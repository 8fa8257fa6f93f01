"""Ranks that go on after one of them has failed."""
