"""``python -m sparse_mpi`` and ``sparse-mpi``: the command line."""

import os
import sys
from signal import SIGPIPE

from sparse_mpi.comm.host_comm import MissingMPI
from sparse_mpi.kernels.heap import keep_freed_memory
from sparse_mpi.tools.bench.records import program
from sparse_mpi.tools.cli import main


def start() -> int:
    """Run the command that the process's arguments name, and return its exit code."""
    keep_freed_memory()
    try:
        return main()
    except MissingMPI as error:
        raise SystemExit(f"{program()}: {error}") from None
    except BrokenPipeError:  # whoever reads what is printed has enough of it, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + SIGPIPE


if __name__ == "__main__":
    raise SystemExit(start())
