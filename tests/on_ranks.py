"""pytest on several numbers of MPI ranks in turn, with ranks that start in no time, see `prefork`.

    python -m tests.on_ranks 1 2 3 4 -- -m mpi -q

For each number it does what ``mpiexec -n 4 python -m pytest --with-mpi -m mpi -q`` does. `make test-mpi` runs it.
"""

from __future__ import annotations

import subprocess
import sys

from . import conftest  # noqa: F401  its variables are to hold from the first import of NumPy on
from .prefork import copied

LIMIT = ("timeout", "-k", "10", "600")  # no run may hang for ever


def main() -> int:
    """Run the tests on as many ranks as each argument before ``--`` says; the others are options of pytest."""
    end = sys.argv.index("--")
    sizes, options = sys.argv[1:end], ["-W", "ignore:Module already imported", *sys.argv[end + 1 :]]
    statuses = []
    for size in sizes:
        print(f"pytest on {size} MPI ranks", flush=True)
        rank = copied("-m", "pytest", "--with-mpi", *options)
        command = [*LIMIT, sys.executable, "-m", "sparse_mpi", "run", "-n", size, *rank]
        statuses.append(subprocess.run(command, stdin=subprocess.DEVNULL).returncode)
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    sys.exit(main())
