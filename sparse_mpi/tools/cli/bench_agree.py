"""``python -m sparse_mpi bench agree``: does a GPU give the results of the CPU, and do both laws hold there?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparse_mpi.arrays import Array, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.laws import LawError
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.cli import options, values
from sparse_mpi.tools.cli.bench_allreduce import on_gpu
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.table import Column, Table

SAME = "to the bit"
TABLE = Table(
    Column("algorithm", -16, "name"),
    Column("difference", 12, lambda row: format(row["apart"], ".1e") if row["apart"] else SAME),
    Column(" laws", -5, lambda row: f" {row['laws']}"),
)


def measure(args: argparse.Namespace, comm: Comm) -> Iterator[Output]:
    """Yield the table, the record, and 1 if any differ too much."""
    layout = options.layout_of(args)
    on_gpu(np.zeros(1, np.float32), comm)  # or say what is missing
    found = {}
    with Bar(len(args.algorithms), "algorithms", comm.rank == 0) as bar:
        for name in args.algorithms:
            bar.say(name)
            found[name] = _compared(name, layout, args, comm)
            bar.update()
    same = sum(row["apart"] == 0 and row["laws"] == "hold" for row in found.values())
    yield (
        f"{args.model or 'flat'}, n = {layout.size:,}, density {args.density:g}, "
        f"P = {comm.size}, {args.steps} steps: results and residuals of the GPU against the CPU's"
    )
    yield "\n".join(TABLE.lines({"name": name, **row} for name, row in found.items()))
    yield f"{same} of {len(found)} {SAME}, with both laws"
    yield {"ranks": comm.size, "n": layout.size, "results": found}
    yield int(any(row["laws"] != "hold" or row["apart"] > args.tolerance for row in found.values()))


def _compared(name: str, layout: Layout, args: argparse.Namespace, comm: Comm) -> dict[str, Any]:
    """Return whether the laws hold on the GPU, and how far its results are from the CPU's at most, on any rank."""
    here, there = (SparseAllreduce(layout, density=args.density, comm=comm, algorithm=name) for _ in range(2))
    rng, apart, laws = np.random.default_rng([args.seed, comm.rank]), 0.0, "hold"
    for _ in range(args.steps):
        gradient = rng.standard_normal(layout.size, np.float32)
        expected = here.step(gradient)
        try:
            total = there.step(on_gpu(gradient, comm), check=True)
        except LawError as error:  # on all ranks
            laws = str(error)
            break
        pairs = [(_dense(total), _dense(expected)), (to_host(there.residual), here.residual)]
        apart = max(apart, *(_distance(a, b) for a, b in pairs))
    most = comm.allreduce(np.array([apart]), "max", control=True)
    return {"laws": laws, "apart": float(most[0])}


def _dense(total: SparseVector | Array) -> np.ndarray:
    """Return a result as ``(n,)`` on the host."""
    return np.asarray(to_host(total.to_dense() if isinstance(total, SparseVector) else total))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the norm of ``a - b`` over that of ``b``; 0 if they have the same bytes."""
    if a.tobytes() == b.tobytes():
        return 0.0
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo(np.float32).tiny))


AGREE = Benchmark(
    "agree",
    help="results of a GPU against those of the CPU, and both laws",
    description="Every algorithm takes the same steps on the CPU and on a GPU, with error feedback, on Gaussian "
    "gradients of a model's shapes. Both laws are asserted on the GPU, and results and residuals compared. Exits "
    "with 1 if any differ by more than --tolerance. Example: mpiexec -n 2 python -m sparse_mpi bench agree",
    options=(
        options.gradient,
        options.algorithms(),
        options.share("share of the elements that is sent"),
        count("--steps", 2, "of each algorithm"),
        option(
            "--tolerance",
            "norm of a difference over that of the CPU's result; algorithms of matrix products or moments add in "
            "an order of their own on each device",
            values.number,
            0.01,
        ),
        options.seed("of the gradients"),
        options.json(),
    ),
    measure=measure,
    collective=True,
)
