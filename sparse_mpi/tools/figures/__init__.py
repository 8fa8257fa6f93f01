"""All figures: one look (`style`), names where lines end (`labels`), and a file for each kind of record."""
