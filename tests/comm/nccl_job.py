"""`NcclComm` between ranks that share one GPU: every call and every algorithm against the host, a line a case.

    NCCL_MULTI_RANK_GPU_ENABLE=1 python -m sparse_mpi run -n 2 -m tests.comm.nccl_job
    python -m sparse_mpi run -n 2 -m tests.fakes -m tests.comm.nccl_job       rehearsed on the pretended device

NCCL takes several ranks on a GPU from 2.30 on. They are processes: in one process a rank that loads a kernel waits for
the whole device, and so for NCCL's kernels, which may wait for that rank. Each case runs over MPI first, which tells
what the device's kernels do from what NCCL does. The job ends by itself in ``LIMIT`` seconds, then with the stacks of
all threads, and with 1 where something differs or fails.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

LIMIT, PATIENCE = 95.0, 3  # seconds; times that on the pretended device, where ranks share what cores there are
for name, value in {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}.items():
    os.environ.setdefault(name, value)  # read when NCCL starts

import cupy  # noqa: E402
import pytest  # noqa: E402
from mpi4py import MPI  # noqa: E402

from sparse_mpi import ALGORITHMS, Layout, World  # noqa: E402
from sparse_mpi.comm import as_comm  # noqa: E402
from sparse_mpi.comm.nccl import NcclComm  # noqa: E402

from ..fakes import fake_nccl  # noqa: E402
from .laws import assert_as_in_a_world, stepped  # noqa: E402
from .on_device import OnDevice  # noqa: E402

if "tests.fakes.fake_array" in sys.modules:
    LIMIT *= PATIENCE
    fake_nccl.install(pytest.MonkeyPatch()).over(as_comm("mpi").duplicate())

from cupy.cuda import nccl  # noqa: E402

LAYOUT, K, STEPS = Layout(((400, 300), (200, 250))), 1700, 4
ORDER = 1e-6  # of the norm: by how much sums in an order of MPI's or NCCL's choice may differ
Body = Callable[[Any], Any]


class Ranks:
    """The ranks of MPI as `World` has them, over ``comm``."""

    def __init__(self, comm: Any) -> None:
        self.size, self._comm = comm.size, comm

    def run(self, fn: Body) -> list[Any]:
        return MPI.COMM_WORLD.allgather(fn(self._comm))


def difference(expected: list[list[np.ndarray]], found: list[list[np.ndarray]], algorithm: str) -> str:
    """Return what is not as it should be; "" where all ranks have the same bytes, and those of the host.

    Sums may differ by what the algorithm declares; where they are not added in rank order, as the last, dense one is
    not, by `ORDER` times their norm too.
    """
    made = ALGORITHMS[algorithm]()
    for step in range(STEPS):
        one, others = expected[0][step], [totals[step] for totals in found]
        if any(other.tobytes() != others[0].tobytes() for other in others):
            return f"step {step}: ranks have different bytes"
        ordered = made.exact_order(LAYOUT, K) and step < STEPS - 1
        within = max(made.traits.device_difference, 0 if ordered else ORDER)
        if (most := float(np.linalg.norm(one - others[0]) / np.linalg.norm(one))) > within:
            return f"step {step}: differs by {most:.3g} of its norm, allowed {within:.3g}"
    return ""


def calls(ranks: Ranks) -> str:
    """Return what a call of `Comm` gets wrong on device arrays, "" if nothing."""
    try:
        assert_as_in_a_world(ranks, OnDevice)
    except AssertionError as error:
        return str(error)
    return ""


def main() -> int:
    """Run all cases, print a line for each, and return 1 if any is wrong, else 0."""
    begun, wrong, mpi = perf_counter(), 0, as_comm("mpi")
    ways = {"MPI": Ranks(mpi), "NCCL": Ranks(NcclComm(mpi))}

    def say(text: str) -> None:
        if mpi.rank == 0:
            print(text, flush=True)

    say(f"NCCL {nccl.get_version()}, CuPy {cupy.__version__}, {mpi.size} ranks")
    for case in ("calls", *ALGORITHMS):
        since = perf_counter()
        if case in ALGORITHMS:
            body = partial(stepped, algorithm=case, layout=LAYOUT, k=K, steps=STEPS)
            expected, there = World(mpi.size).run(body), partial(body, place=cupy.asarray)
            found = {way: difference(expected, ranks.run(there), case) for way, ranks in ways.items()}
        else:
            found = {way: calls(ranks) for way, ranks in ways.items()}
        wrong += any(found.values())
        texts = ", ".join(f"{way} {text or 'agrees'}" for way, text in found.items())
        say(f"{case}: {texts} ({perf_counter() - since:.1f} s)")
    say(f"{wrong} cases differ, {perf_counter() - begun:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        status = main()
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)  # the others wait for this rank
    MPI.COMM_WORLD.Barrier()
    MPI.Finalize()
    sys.stdout.flush()
    os._exit(status)  # without destroying communicators one after the other, which may wait for the other ranks
