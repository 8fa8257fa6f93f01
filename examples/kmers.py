"""Count the k-mers of sequencing reads: pairs (keys, values), added up over ranks.

    python -m sparse_mpi run -n 4 examples/kmers.py --plot kmers.png

Each rank counts the k-mers of its share of the reads, which are numbers below 4^21; an
allreduce adds up the counts of equal ones. From 32 bases on a k-mer is two numbers, a
row of the keys. The reads are those of Debian's package bowtie2-examples (apt-get
install bowtie2-examples). The answer is checked against one process.
"""

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import as_comm
from sparse_mpi_bench.figures.style import COLOURS, panels, write

READS = Path("/usr/share/doc/bowtie2/examples/reads")
FILES = ("reads_1.fq.gz", "reads_2.fq.gz", "longreads.fq.gz")
CODES = np.full(256, 4, np.uint8)
CODES[np.frombuffer(b"ACGT", np.uint8)] = range(4)

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "-k",
    "--k",
    type=values.integer(1, 63),
    default=21,
    help="bases, at most 63 (default: 21)",
)
parser.add_argument(
    "--reads",
    type=values.folder("reads"),
    default=READS,
    metavar="DIR",
    help=f"with {', '.join(FILES)}",
)
parser.add_argument(
    "--save",
    type=values.new_folder("runs/kmers"),
    metavar="DIR",
    help="write what each rank has, for bench sparse --data DIR, of 31 bases at most",
)
parser.add_argument(
    "--plot",
    type=values.figure,
    metavar="FILE",
    help="draw how many k-mers occur how often",
)


def reads(folder: Path) -> list[np.ndarray]:
    """Return all reads, as codes 0 to 3 of their bases, and 4 of unknown ones."""
    if not (folder / FILES[0]).exists():
        raise SystemExit(
            f"{folder} has no {FILES[0]}; apt-get install bowtie2-examples, or --reads "
            "DIR"
        )
    lines = [
        line
        for name in FILES
        for line in gzip.open(folder / name).read().splitlines()[1::4]
    ]
    return [CODES[np.frombuffer(line, np.uint8)] for line in lines]


def counted(chosen: list[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k-mers of some reads, ascending, and how often each occurs.

    They are numbers, base by base two bits; of more than 31 bases two each, the last 32
    bases in the second column.
    """
    bases = np.concatenate(
        [np.append(read, 4) for read in chosen] or [np.empty(0, np.uint8)]
    )  # 4 parts them
    windows = len(bases) - k + 1
    known = np.ones(max(windows, 0), bool)
    columns = [np.zeros(len(known), np.uint64) for _ in range(1 if k < 32 else 2)]
    for place in range(k if windows > 0 else 0):
        letters, column = bases[place : place + windows], 0 if place < k - 32 else -1
        columns[column] = 4 * columns[column] + (letters & 3).astype(np.uint64)
        known &= letters < 4
    if k < 32:
        return np.unique(columns[0][known].astype(np.int64), return_counts=True)
    return np.unique(np.stack(columns, axis=1)[known], axis=0, return_counts=True)


def main() -> None:
    """Count, and check it."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    everything = reads(args.reads)
    mine = counted(everything[world.rank :: world.size], args.k)
    if args.save and args.k < 32:
        args.save.mkdir(parents=True, exist_ok=True)
        np.savez(args.save / f"rank-{world.rank}.npz", keys=mine[0], values=mine[1])
    world.Barrier()
    began = MPI.Wtime()
    keys, counts = sparse_mpi.allreduce(mine)
    seconds, sent = MPI.Wtime() - began, as_comm().traffic.sent

    if world.rank == 0:
        print(
            f"{len(everything):,} reads, {len(keys):,} distinct {args.k}-mers, "
            f"{counts.sum():,} in all"
        )
        print(
            f"{world.size} ranks, {seconds:.3f} s, {sent / 1e6:.2f} MB sent by rank 0 "
            f"for {len(mine[0]):,} of its own"
        )
        expected = counted(everything, args.k)
        if not (
            np.array_equal(keys, expected[0]) and np.array_equal(counts, expected[1])
        ):
            raise SystemExit("the answer is not that of one process")
        print("as counted by one process")
        if args.plot:
            write(partial(figure, counts, args.k), args.plot)


def figure(counts: np.ndarray, k: int) -> Any:
    """Draw the spectrum: errors of the sequencer occur once, true k-mers more often."""
    drawn, ((axes,),) = panels(1, 1, 3.0)
    axes.plot(np.bincount(counts)[:120], color=COLOURS[0])
    axes.set(
        yscale="log",
        xlabel="occurrences",
        ylabel=f"{k}-mers",
        title="k-mer spectrum of lambda phage reads",
    )
    return drawn


if __name__ == "__main__":
    main()
