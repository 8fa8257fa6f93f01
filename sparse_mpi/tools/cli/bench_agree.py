"""``python -m sparse_mpi bench agree``: does a GPU give the results of the CPU, and do both laws hold there?"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.arrays import Array, to_host
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.laws import LawError
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import gradient_options, values
from sparse_mpi.tools.cli.bench_allreduce import on_gpu

SAME = "to the bit"


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench agree``."""
    parser = kinds.add_parser(
        "agree",
        help="results of a GPU against those of the CPU, and both laws",
        description="Every algorithm takes the same steps on the CPU and on a GPU, with error feedback, on Gaussian "
        "gradients of a model's shapes. Both laws are asserted on the GPU, and results and residuals compared. Exits "
        "with 1 if any differ by more than --tolerance. Example: mpiexec -n 2 python -m sparse_mpi bench agree",
    )
    gradient_options.declare(parser)
    parser.add_argument(
        "--algorithms",
        nargs="+",
        choices=list(ALGORITHMS),
        default=list(ALGORITHMS),
        metavar="NAME",
        help="(default: all)",
    )
    parser.add_argument("--density", type=values.share, default=0.01, help="share of the elements that is sent")
    parser.add_argument("--steps", type=values.integer(1), default=2, help="of each algorithm")
    text = "norm of a difference over that of the CPU's result; algorithms of matrix products or moments add in an "
    parser.add_argument(
        "--tolerance", type=values.number, default=0.01, help=text + "order of their own on each device"
    )
    parser.add_argument("--seed", type=values.integer(0), default=0, help="of the gradients")
    parser.add_argument(
        "--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were measured on"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, and print on rank 0."""
    layout = gradient_options.layout_of(args)
    comm = as_comm(None)
    on_gpu(np.zeros(1, np.float32), comm)  # or say what is missing
    found = {}
    with Bar(len(args.algorithms), "algorithms", comm.rank == 0) as bar:
        for name in args.algorithms:
            bar.say(name)
            found[name] = _compared(name, layout, args, comm)
            bar.update()
    good = all(row["laws"] == "hold" and row["apart"] <= args.tolerance for row in found.values())
    if comm.rank == 0:
        print(_render(found, layout, args, comm.size))
        if args.json:
            record = {"ranks": comm.size, "n": layout.size, "options": records.options(args), **provenance()}
            records.write(args.json, record | {"results": found})
    return int(not good)


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


def _render(found: dict[str, dict[str, Any]], layout: Layout, args: argparse.Namespace, ranks: int) -> str:
    """Return a table."""
    lines = [
        f"{args.model or 'flat'}, n = {layout.size:,}, density {args.density:g}, "
        f"P = {ranks}, {args.steps} steps: results and residuals of the GPU against the CPU's",
        f"{'algorithm':<16} {'difference':>12}  laws",
    ]
    for name, row in found.items():
        lines.append(f"{name:<16} {SAME if row['apart'] == 0 else format(row['apart'], '.1e'):>12}  {row['laws']}")
    same = sum(row["apart"] == 0 and row["laws"] == "hold" for row in found.values())
    return "\n".join([*lines, f"{same} of {len(found)} {SAME}, with both laws"])
