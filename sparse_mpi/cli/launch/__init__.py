"""The launcher: this Python's mpiexec, its settings, and jobs that leave nothing behind."""
