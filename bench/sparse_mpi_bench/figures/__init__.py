"""All figures: their `style`, and a file for each kind of record."""
