"""Model what communication costs on a network, and fit the model to measurements."""
