"""Adapters of other training frameworks to the hook of `sparse_mpi.ddp`."""
