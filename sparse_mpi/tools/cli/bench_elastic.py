"""``python -m sparse_mpi bench elastic``: what it costs to be able to lose a rank, as long as none is lost.

A plain reducer and one of a team take turns on the same gradients, in one run: the ratio holds on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from time import perf_counter

import numpy as np

from sparse_mpi.comm import Comm
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.cli import options, values
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option

DESCRIPTION = """\
Time a step of a reducer that survives the loss of ranks over one that does not, and count what it sends more. Both take
turns on the same Gaussian gradients. Needs Open MPI 5 with its failure mitigation.

  python -m sparse_mpi run --elastic -n 4 -m sparse_mpi bench elastic --n 1000000
  python -m sparse_mpi bench network --elastic --ranks 8 --rate 1gbit -- bench elastic --copy-every 200
"""


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the times of both, and the record."""
    density, algorithm = args.density, algorithm_spelled(args.algorithm)
    plain = SparseAllreduce(args.n, density=density, comm=comm, algorithm=algorithm)
    try:
        team = ElasticAllreduce(
            args.n, density=density, comm=comm.duplicate(), algorithm=algorithm, copy_every=args.copy_every
        )
    except ValueError as error:
        raise SystemExit(f"bench elastic cannot run here: {error}") from None
    base = np.random.default_rng([args.seed, comm.rank]).standard_normal(args.n, np.float32)
    seconds: dict[str, list[float]] = {"plain": [], "elastic": []}
    sent = dict.fromkeys(seconds, 0)
    with Bar(args.warmup + args.steps, "steps", comm.rank == 0) as bar:
        for step in range(args.warmup + args.steps):
            gradient = np.roll(base, 7919 * step)
            turns = [("plain", plain), ("elastic", team)]
            for name, reducer in turns if step % 2 else reversed(turns):
                spent = _step(reducer, gradient, comm)
                if step >= args.warmup:
                    seconds[name].append(spent)
                    assert reducer.report is not None, "a step was made"
                    sent[name] += reducer.report.traffic.sent + reducer.report.traffic.control
            bar.update()
    for name, times in seconds.items():
        usual, megabytes = 1e3 * statistics.median(times), sent[name] / args.steps / 1e6
        yield f"{name:8}{usual:9.2f} ms a step (median), {megabytes:8.3f} MB sent by rank 0"
    ratio = statistics.median(b / a for a, b in zip(seconds["plain"], seconds["elastic"], strict=True))
    yield f"ratio of a step to the other of its turn: {ratio:.3f} (median)"
    yield records.options(args) | {"seconds": seconds, "sent": sent, "ratio": ratio, "ranks": comm.size}


def _step(reducer: SparseAllreduce, gradient: np.ndarray, comm: Comm) -> float:
    """Return the seconds that a step takes the slowest rank."""
    comm.barrier()
    start = perf_counter()
    reducer.step(gradient)
    return float(comm.allreduce(np.array([perf_counter() - start]), "max")[0])


ELASTIC = Benchmark(
    "elastic",
    help="what it costs to be able to lose a rank",
    description=DESCRIPTION,
    options=(
        option("--algorithm NAME", f"default: elect; {values.SPELLINGS}", values.algorithm, "elect"),
        count("--n", 14_728_266, "elements of the gradient (default: 14728266, those of VGG-16)"),
        options.share("k over n (default: 0.01)"),
        count("--copy-every T", 200, "steps in which residuals are copied (default: 200)", 0),
        count("--steps", 20, "steps of each that count, after --warmup more (default: 20)"),
        count("--warmup", 5, "steps of each that do not count (default: 5)", 0),
        options.seed(),
        options.json(),
    ),
    measure=measure,
    collective=True,
)
