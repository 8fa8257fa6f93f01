"""All that is to be proven on a machine with a GPU."""
