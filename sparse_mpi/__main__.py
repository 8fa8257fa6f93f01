"""``python -m sparse_mpi``: the command line."""

from sparse_mpi.cli import main
from sparse_mpi.heap import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()
    raise SystemExit(main())
