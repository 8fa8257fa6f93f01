"""Who sends what to whom: traffic recorded, counted over numbers of ranks, drawn over time and priced on a network."""
