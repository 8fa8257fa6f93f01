"""Models of what communication costs on a network, and fits of them to measurements."""
