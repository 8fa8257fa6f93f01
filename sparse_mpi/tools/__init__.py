"""Programs around the library: the command line, benchmarks, figures, prediction; nothing below imports them."""
