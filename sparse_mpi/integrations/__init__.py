"""Adapters of other training frameworks to the hook of `sparse_mpi.ddp`: a file for each, which imports it."""
