"""Measure algorithms beside each other, and record what a measurement was made on."""
