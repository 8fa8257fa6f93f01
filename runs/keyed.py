r"""Sums of data that is sparse already beside the ways of mpi4py, over sizes, in turns on one machine.

    python -m sparse_mpi run -n 4 runs/keyed.py --kinds matrices histograms kmers --json keyed.json
    python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- runs/keyed.py --kinds matrices --network 1gbit \
        --json keyed.json

An existing record is continued: it gets the missing measurements of a network.

`matrices`: square CSR matrices of float64, 1 % of which is not zero. `histograms`: weights and their squares in 10^9
bins. `kmers`: counts, of keys of 64 bits, of 128 bits, of strings, and of a Counter that is pickled. Each gives all
ranks the sum.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import sparse_mpi
from sparse_mpi.cli.records import add_measured

BINS, MOST_DENSE = 10**9, 1 << 24
SIZES = {
    "matrices": (400, 4_000, 40_000, 400_000),
    "histograms": (1_000, 10_000, 100_000, 1_000_000),
    "kmers": (10**3, 10**4, 10**5),
}
Work = Callable[[], Any]


def matrices(world: Any, entries: int) -> dict[str, Work]:
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


def histograms(world: Any, entries: int) -> dict[str, Work]:
    """Return the ways to sum a histogram of ``entries`` filled bins on each rank."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng([1, world.rank])
    bins = np.unique(rng.integers(0, BINS, entries))
    weights = rng.random(len(bins))
    numbers = np.stack([weights, weights**2], axis=1)
    rows = [csr_array((column, bins, [0, len(bins)]), (1, BINS)) for column in numbers.T]
    return {
        "allreduce": lambda: sparse_mpi.allreduce((bins, numbers), comm=world),
        "pickled": lambda: [world.allreduce(row) for row in rows],
    }


def kmers(world: Any, entries: int) -> dict[str, Work]:
    """Return the ways to sum counts of 45-mers, and of 21-mers: ``entries`` on each rank, out of twice as much."""
    pool = np.random.default_rng(2).integers(0, 1 << 62, (2 * entries, 2)).astype(np.uint64)
    chosen = pool[np.random.default_rng([3, world.rank]).permutation(len(pool))[:entries]]
    counts = np.ones(entries, np.int64)
    strings = np.array([f"{high:023x}{low:022x}" for high, low in chosen.tolist()])
    counter = Counter(dict(zip(strings.tolist(), counts.tolist(), strict=True)))
    return {
        "64 bits": lambda: sparse_mpi.allreduce((chosen[:, 0] >> np.uint64(20), counts), comm=world),
        "128 bits": lambda: sparse_mpi.allreduce((chosen, counts), comm=world),
        "strings": lambda: sparse_mpi.allreduce((strings, counts), comm=world),
        "pickled Counter": lambda: world.allreduce(counter),
    }


KINDS = {"matrices": matrices, "histograms": histograms, "kmers": kmers}


def measured(world: Any, kind: str, entries: int, steps: int) -> dict[str, float]:
    """Return the median milliseconds of each candidate, until the last rank is done; all take turns."""
    work = KINDS[kind](world, entries)
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


def results(world: Any, kinds: list[str], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the measurements, size by size."""
    for kind in kinds:
        for entries in SIZES[kind]:
            ms = measured(world, kind, entries, steps)
            yield {"kind": kind, "entries": entries, "ms": ms, "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="of data (default: all)")
    parser.add_argument("--network", default="shared memory", help="its name in the record (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="of each, after one more (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add what was measured to the record there")
    args = parser.parse_args()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    about = {"network": args.network, "ranks": world.size}
    found = []
    for row in results(world, args.kinds, args.steps):
        found.append(about | row)
        if world.rank == 0:
            print(args.network, row["kind"], f"{row['entries']:,}", row["ms"], flush=True)
    if world.rank == 0 and args.json:
        add_measured(args.json, found, "network", "kind")


if __name__ == "__main__":
    main()
