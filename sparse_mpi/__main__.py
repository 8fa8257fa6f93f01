"""``python -m sparse_mpi``: the command line."""

from sparse_mpi.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
