"""A slow network on one machine: emulated hosts, the measured rates of their links, and MPI jobs on them."""
