"""What other training frameworks need to use the hook of `sparse_mpi.ddp`: a file for each, which imports it."""
