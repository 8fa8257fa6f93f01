"""The workbench of sparse_mpi: benchmarks, emulated networks, chaos, traces, figures."""
