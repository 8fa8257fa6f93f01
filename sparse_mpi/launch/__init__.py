"""Starting MPI jobs: which mpiexec belongs to this Python's MPI, what it needs, and a job that leaves nothing behind."""
