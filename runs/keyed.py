"""Sums of CSR matrices of float64, 1 % of which is not zero, beside the ways of mpi4py: over sizes, in turns.

    python -m sparse_mpi run -n 4 runs/keyed.py --json keyed.json
    python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- runs/keyed.py --network 1gbit --json keyed.json

All ranks get the sum. An existing record is continued: measurements of the network are made anew.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import sparse_mpi
from sparse_mpi.cli.records import add_measured

MOST_DENSE = 1 << 24
SIZES = (400, 4_000, 40_000, 400_000)
Work = Callable[[], Any]


def ways(world: Any, entries: int) -> dict[str, Work]:
    """Return the ways to sum a matrix of ``entries`` entries on each rank."""
    import scipy.sparse

    side = round((100 * entries) ** 0.5)
    x = scipy.sparse.random_array((side, side), density=0.01, format="csr", rng=np.random.default_rng(world.rank))

    def gathered() -> Any:
        parts = world.gather(x)
        return world.bcast(sum(parts[1:], parts[0]) if world.rank == 0 else None)

    def dense() -> Any:
        total = np.empty(x.shape)
        world.Allreduce(x.toarray(), total)
        return total

    found: dict[str, Work] = {
        "allreduce": lambda: sparse_mpi.allreduce(x, comm=world),
        "pickled": lambda: world.allreduce(x),
        "gathered": gathered,
    }
    return found | ({"dense": dense} if side**2 <= MOST_DENSE else {})


def measured(world: Any, entries: int, steps: int) -> dict[str, float]:
    """Return the median milliseconds of each candidate, until the last rank is done; all take turns."""
    work = ways(world, entries)
    taken: dict[str, list[float]] = {name: [] for name in work}
    for step in range(-1, steps):
        for place in np.random.default_rng([4, step + 1]).permutation(len(work)).tolist():
            name = list(work)[place]
            world.Barrier()
            began = perf_counter()
            work[name]()
            seconds = max(world.allgather(perf_counter() - began))
            if step >= 0:  # the first also compiles and connects
                taken[name].append(seconds)
    return {name: float(f"{1e3 * median(each):.3g}") for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="shared memory", help="its name in the record (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="of each, after one more (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add what was measured to the record there")
    args = parser.parse_args()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    about, found = {"network": args.network, "ranks": world.size, "kind": "matrices"}, []
    for entries in SIZES:
        ms = measured(world, entries, args.steps)
        found.append(about | {"entries": entries, "ms": ms, "load": round(os.getloadavg()[0], 1)})
        if world.rank == 0:
            print(args.network, f"{entries:,}", ms, flush=True)
    if world.rank == 0 and args.json:
        add_measured(args.json, found, "network", "kind")


if __name__ == "__main__":
    main()
