"""The launcher: the mpiexec of this Python's MPI, its settings, and jobs that leave nothing behind."""
