"""The launcher: which mpiexec belongs to this Python's MPI, what it needs, and jobs that leave nothing behind."""
