"""A slow network on one machine: emulated hosts, what their links really give, and MPI jobs on them."""
