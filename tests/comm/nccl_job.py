"""`NcclComm` between ranks that share one GPU: every call and every algorithm against the host, a line a case.

    NCCL_MULTI_RANK_GPU_ENABLE=1 python -m tests.comm.nccl_job           2 and 4 ranks, threads of this process
    python -m sparse_mpi run -n 2 -m tests.comm.nccl_job                 the ranks of MPI, a process each
    python -m tests.fakes -m tests.comm.nccl_job                         rehearsed on the pretended device

NCCL takes several ranks on a GPU from 2.30 on. Each rank works on a stream of its own, for the kernels of NCCL wait for
each other. Each case runs over the host first, on the same streams: that loads all kernels and takes all memory, for
both may wait for the whole device, and so for a rank of NCCL that waits for this one. It ends by itself in ``LIMIT``
seconds, then with the stacks of all threads, and with 1 where something differs or fails.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np

LIMIT = 95.0  # seconds
for name, value in {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_MODULE_LOADING": "EAGER", "NCCL_MAX_CTAS": "8"}.items():
    os.environ.setdefault(name, value)  # read when CUDA and NCCL start, so before what follows is imported

import cupy  # noqa: E402
import pytest  # noqa: E402

from sparse_mpi import ALGORITHMS, Layout, SparseAllreduce, World  # noqa: E402
from sparse_mpi.arrays import to_host  # noqa: E402
from sparse_mpi.comm import as_comm  # noqa: E402
from sparse_mpi.comm.nccl import NcclComm  # noqa: E402
from sparse_mpi.comm.runtime import ranks_of_mpi  # noqa: E402
from sparse_mpi.testing import check_transport  # noqa: E402
from sparse_mpi.testing.checking_transports import TALKS  # noqa: E402

from ..fakes import fake_nccl  # noqa: E402
from .test_nccl import OnDevice  # noqa: E402

if "tests.fakes.fake_array" in sys.modules:  # of the pretended device
    fake_nccl.install(pytest.MonkeyPatch())

from cupy.cuda import nccl  # noqa: E402

LAYOUT, K, STEPS = Layout(((400, 300), (200, 250))), 1700, 4
ORDER = 1e-6  # of the norm: by how much sums in NCCL's order may differ
Body = Callable[[Any], Any]


class Ranks:
    """Ranks of threads, or of MPI, as `World` has them: over the host, or over NCCL."""

    def __init__(self, size: int, over_nccl: bool, streams: list[Any], under_mpi: bool = False) -> None:
        self.size, self._streams, self._under_mpi, self._nccl = size, streams, under_mpi, over_nccl
        self._hosts = [as_comm("mpi")] if under_mpi else _threads(size)
        self._made: dict[int, Any] = {}

    def run(self, fn: Body) -> list[Any]:
        """Return ``fn(comm)`` of each rank, each on its stream; a rank that fails ends the process."""

        def body(host: Any) -> Any:
            try:
                with self._streams[host.rank]:
                    result = fn(self._over(host))
                    cupy.cuda.get_current_stream().synchronize()
                    return result
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)  # the others wait for this one

        if self._under_mpi:
            from mpi4py import MPI

            return MPI.COMM_WORLD.allgather(body(self._hosts[0]))
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(body, self._hosts))

    def _over(self, host: Any) -> Any:
        if not self._nccl:
            return host
        if hasattr(nccl, "over"):  # the pretended one
            nccl.over(host.duplicate())
        if host.rank not in self._made:
            self._made[host.rank] = NcclComm(host)
        return self._made[host.rank]


def _threads(size: int) -> list[Any]:
    example = run_path(str(Path(__file__).parents[2] / "examples" / "threads_transport.py"))
    board = example["Board"](size)
    return [example["ThreadComm"](rank, board) for rank in range(size)]


def steps(algorithm: str, place: Callable[[np.ndarray], Any]) -> Body:
    """Return the body that makes steps, the last of them dense, and returns each total, whole (n,) and on the host."""

    def body(comm: Any) -> list[np.ndarray]:
        reducer, totals = SparseAllreduce(LAYOUT, k=K, comm=comm, algorithm=algorithm), []
        for step in range(STEPS):
            drawn = np.random.default_rng([comm.rank, step]).standard_normal(LAYOUT.size).astype(np.float32)
            total = reducer.step(place(drawn), dense=step == STEPS - 1)
            totals.append(to_host(total.to_dense() if hasattr(total, "to_dense") else total))
        return totals

    return body


def difference(expected: list[list[np.ndarray]], found: list[list[np.ndarray]], allowed: float) -> str:
    """Return what is not as it should be; "" where all ranks have the same bytes, and those of the host.

    Sums may differ by ``allowed`` times their norm; the last, dense one by `ORDER` too.
    """
    for step in range(STEPS):
        one, others = expected[0][step], [totals[step] for totals in found]
        if any(other.tobytes() != others[0].tobytes() for other in others):
            return f"step {step}: ranks have different bytes"
        within = max(allowed, ORDER * (step == STEPS - 1))
        if (most := float(np.linalg.norm(one - others[0]) / np.linalg.norm(one))) > within:
            return f"step {step}: differs by {most:.3g} of its norm, allowed {within:.3g}"
    return ""


def laws(ranks: Ranks) -> str:
    """Return what a call of `Comm` gets wrong on device arrays, "" if nothing."""

    def run(fn: Body) -> list[Any]:
        return ranks.run(lambda comm: fn(OnDevice(comm)))

    wrapped = SimpleNamespace(size=ranks.size, run=run)
    try:
        check_transport(lambda _: wrapped, replace(TALKS, ranks=(ranks.size,), examples=0))
    except AssertionError as error:
        return str(error)
    return ""


def main() -> int:
    """Run all cases, print a line for each, and return how many of them are wrong, at most 1."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    sys.setswitchinterval(1e-4)  # threads that ask NCCL whether it has ended leave the others their turn
    under_mpi, wrong, begun = ranks_of_mpi(sure=True) > 1, 0, perf_counter()
    sizes = [as_comm("mpi").size] if under_mpi else [2, 4]
    speaks = not under_mpi or as_comm("mpi").rank == 0
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(max(sizes))]
    if speaks:
        print(f"NCCL {nccl.get_version()}, CuPy {cupy.__version__}", flush=True)
    for size in sizes:
        host, over = (Ranks(size, over_nccl, streams, under_mpi) for over_nccl in (False, True))
        for case in ("calls", *ALGORITHMS):
            found, since = {}, perf_counter()
            for way, ranks in (("staged", host), ("NCCL", over)):
                if case not in ALGORITHMS:
                    found[way] = laws(ranks)
                    continue
                expected, algorithm = World(size).run(steps(case, np.asarray)), ALGORITHMS[case]()
                ordered = way == "staged" or algorithm.exact_order(LAYOUT, K)
                allowed = max(algorithm.traits.device_difference, 0 if ordered else ORDER)
                found[way] = difference(expected, ranks.run(steps(case, cupy.asarray)), allowed)
            texts = [f"{way} {text or 'agrees'}" for way, text in found.items()]
            wrong += any(found.values())
            if speaks:
                print(f"{size} ranks, {case}: {', '.join(texts)} ({perf_counter() - since:.1f} s)", flush=True)
    if speaks:
        print(f"{wrong} cases differ, {perf_counter() - begun:.0f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    if ranks_of_mpi(sure=True) > 1:
        from mpi4py import MPI

        MPI.Finalize()
    os._exit(status)  # without destroying communicators one after the other, which may wait for the other ranks
