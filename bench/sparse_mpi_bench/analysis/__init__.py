"""Analysis of traffic: record it, count it for many numbers of ranks, lay it out in time and price it on a network."""
