"""PageRank of Debian's packages by a persistent allreduce: a rank needs its own nodes.

    python -m sparse_mpi run -n 4 examples/pagerank.py --plot pagerank.png

A package passes its rank on to those it depends on. Every rank holds a range of the
packages and the edges that leave them. In an iteration it has values for the targets of
its edges, and needs the sums for its own packages; which keys that are never changes,
so they are told once. The data are the lists of `apt-get update`. The answer is checked
against one process with scipy.
"""

import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from mpi4py import MPI

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import as_comm
from sparse_mpi_bench.figures.style import COLOURS, panels, write

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "--iterations", type=values.integer(1), default=40, help="how many (default: 40)"
)
parser.add_argument(
    "--damping",
    type=values.part,
    default=0.85,
    help="share of rank that follows dependencies (default: 0.85)",
)
parser.add_argument(
    "--available",
    type=values.file("available.txt"),
    metavar="FILE",
    help="what apt-cache dumpavail said, here or elsewhere",
)
WAYS = ("persistent", "anew", "pickled")
text = "sums by a persistent allreduce, by one of everything, or mpi4py's of csr_array"
parser.add_argument(
    "--by", choices=WAYS, default=WAYS[0], help=f"{text} (default: persistent)"
)
parser.add_argument(
    "--save",
    type=values.new_folder("runs/pagerank"),
    metavar="DIR",
    help="write each rank's counts of dependencies, for bench sparse --data DIR",
)
parser.add_argument(
    "--plot", type=values.figure, metavar="FILE", help="draw the best ranked packages"
)


def packages(file: Path | None) -> tuple[list[str], np.ndarray]:
    """Return the names of packages, and edges ``(2, m)`` from each to what it needs."""
    if file is None and shutil.which("apt-cache") is None:
        raise SystemExit(
            "there is no apt-cache here; take --available with what it said elsewhere"
        )
    dump = ["cat", str(file)] if file else ["apt-cache", "dumpavail"]
    told = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    needs = {}
    for text in told.split("\n\n"):
        fields = dict(
            re.findall(r"^(Package|Depends|Pre-Depends): (.*)$", text, re.MULTILINE)
        )
        if "Package" in fields:
            wanted = f"{fields.get('Depends', '')}, {fields.get('Pre-Depends', '')}"
            needs[fields["Package"]] = set(
                re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", wanted)
            )
    if not needs:
        raise SystemExit("no packages are known; run apt-get update first")
    names = sorted(needs)
    number = {name: place for place, name in enumerate(names)}
    edges = [
        (number[a], number[b]) for a in names for b in sorted(needs[a]) if b in number
    ]
    return names, np.array(edges).T


def everything(
    by: str, keys: np.ndarray, values: np.ndarray, needed: np.ndarray
) -> np.ndarray:
    """Return the sums of what this rank needs, by an allreduce of all."""
    total = np.zeros(needed[-1] + 1)
    if by == "anew":
        found, sums = sparse_mpi.allreduce((keys, values))
        total[found] = sums
    else:
        row = scipy.sparse.csr_array(
            (values, keys, np.array([0, len(keys)])), shape=(1, len(total))
        )
        found = MPI.COMM_WORLD.allreduce(row)
        total[found.indices] = found.data
    return total[needed]


def serial(edges: np.ndarray, size: int, iterations: int, damping: float) -> np.ndarray:
    """Return the ranks by one process."""
    out = np.bincount(edges[0], minlength=size)
    matrix = scipy.sparse.csr_array(
        (1 / out[edges[0]], (edges[1], edges[0])), shape=(size, size)
    )
    x = np.full(size, 1 / size)
    for _ in range(iterations):
        x = (1 - damping) / size + damping * (matrix @ x + x[out == 0].sum() / size)
    return x


def main() -> None:
    """Rank the packages, and check it."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    names, edges = world.bcast(packages(args.available) if world.rank == 0 else None)
    size = len(names)
    # This rank's packages, its edges, and the keys of what it has for others.
    low, high = (size * (world.rank + i) // world.size for i in (0, 1))
    sources, targets = edges[:, (low <= edges[0]) & (edges[0] < high)]
    out = np.bincount(sources - low, minlength=high - low)
    keys, place = np.unique(targets, return_inverse=True)
    if args.save:
        args.save.mkdir(parents=True, exist_ok=True)
        np.savez(
            args.save / f"rank-{world.rank}.npz",
            keys=keys,
            values=np.bincount(place, minlength=len(keys)),
        )
    # One key more has what is lost in packages that depend on nothing: all give it, and
    # all need it.
    keys, needed = np.append(keys, size), np.append(np.arange(low, high), size)
    request = sparse_mpi.allreduce_init(keys, needed, validate="first")

    x = np.full(high - low, 1 / size)
    began, before = MPI.Wtime(), as_comm().traffic.sent
    for _ in range(args.iterations):
        passed = np.bincount(
            place,
            weights=(x / np.maximum(out, 1))[sources - low],
            minlength=len(keys) - 1,
        )
        values = np.append(passed, x[out == 0].sum())
        if args.by == "persistent":
            request.start(values)
            received = request.wait()
        else:
            received = everything(args.by, keys, values, needed)
        x = (1 - args.damping) / size + args.damping * (
            received[:-1] + received[-1] / size
        )
    seconds, sent = (
        (MPI.Wtime() - began) / args.iterations,
        (as_comm().traffic.sent - before) / args.iterations,
    )
    least = 8 * world.allreduce(
        len(keys) + request.found.sum()
    )  # values to their owners, and what is there back
    sent = world.allreduce(sent)

    ranks = np.concatenate(world.allgather(x))
    if world.rank == 0:
        wrong = abs(ranks - serial(edges, size, args.iterations, args.damping)).max()
        best = np.argsort(-ranks)[:20]
        print(f"{size:,} packages, {edges.shape[1]:,} dependencies, {world.size} ranks")
        print(
            f"{1e3 * seconds:.2f} ms and {sent / 1e6:.3f} MB in all an iteration; "
            f"values alone are {least / 1e6:.3f} MB"
        )
        print("best:", ", ".join(names[i] for i in best[:5]))
        print(f"largest difference from one process: {wrong:.1e}")
        if args.plot:
            write(partial(figure, [names[i] for i in best], ranks[best]), args.plot)
        if wrong > 1e-12:
            raise SystemExit("the answer is not that of one process")


def figure(names: list[str], ranks: np.ndarray) -> Any:
    """Draw the ranks of some packages as bars."""
    drawn, ((axes,),) = panels(1, 1, 4.0)
    axes.barh(names[::-1], ranks[::-1], color=COLOURS[0])
    axes.set(xlabel="PageRank", title="What Debian's packages depend on")
    return drawn


if __name__ == "__main__":
    main()
