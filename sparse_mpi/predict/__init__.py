"""Models of the time of communication on a network, fitted to measurements."""
