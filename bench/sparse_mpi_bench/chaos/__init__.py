"""Faults on purpose: ranks of a running job are killed or frozen, or lose their links, when a seed says so."""
