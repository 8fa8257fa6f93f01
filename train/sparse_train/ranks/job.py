"""Run a training program as one job of many ranks, which starts, goes on and ends on all of them together."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
import zlib
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TypeVar

import numpy as np
import torch.distributed as dist

from sparse_mpi import keep_freed_memory, watch
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.comm.job.launcher import first_to_say
from sparse_mpi.fault_tolerance import team_of

T = TypeVar("T")
MAX_CPUS = 4096  # logical CPUs of a host
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
EVERY = 5  # steps from one exchange of the ranks' signals to the next


class JobError(Exception):
    """An error that stops the job on all ranks together, with the reason."""


class Preempted(Exception):
    """Raised on all ranks together when a signal ends the job before it is done; it can be resumed."""


def run(program: Callable[[Namespace, Comm], object], args: Namespace) -> None:
    """Run ``program`` on the ranks that MPI started, and exit with a status other than 0 if it fails.

    A `JobError` ends with a line from every rank, `Preempted` with status 75 (EX_TEMPFAIL). Any other exception on any
    rank aborts the whole job with its traceback, because the others would wait for that rank for ever.
    """
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    keep_freed_memory()
    try:
        comm = comm_of_job()
        watch(comm)
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    try:
        program(args, comm)
    except JobError as error:
        if first_to_say(str(error)):
            print(f"error on rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        _meet(comm)  # a launcher ends the job at the first exit: let every rank speak before
        sys.exit(1)
    except Preempted as preempted:
        team = team_of(comm)
        if (comm if team is None else team.comm).rank == 0:
            print(preempted, flush=True)
        _meet(comm)
        sys.exit(os.EX_TEMPFAIL)
    except Exception as error:
        if said := out_of_memory(error):
            print(f"error on rank {comm.rank}: {said}", file=sys.stderr, flush=True)
        if team_of(comm):  # the others go on
            raise
        comm.job.abort(error)


def in_process_group(program: Callable[[Namespace, Comm], object]) -> Callable[[Namespace, Comm], None]:
    """Return ``program`` in torch's default process group, over gloo; ranks must share the working directory."""

    def run_there(args: Namespace, comm: Comm) -> None:
        with TemporaryDirectory(prefix=".store-", dir=".") if comm.rank == 0 else nullcontext("") as made:
            store = dist.FileStore(f"{tell(comm, made)}/store", comm.size)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
            program(args, comm)
            dist.destroy_process_group()
            tell(comm, "")  # no rank needs the store any more

    return run_there


def out_of_memory(error: Exception) -> str:
    """Return the remedy for an error of torch or CuPy about a GPU's full memory; "" of any other."""
    if type(error).__name__ != "OutOfMemoryError":
        return ""
    wanted = str(error).partition("\n")[0]  # the amount asked for
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"the memory of the GPU is full in {last.name} ({Path(last.filename).name}): {wanted}; lower --batch-size, or "
        "take --precision bf16, or more GPUs"
    )


def _meet(comm: Comm) -> None:
    team = team_of(comm)
    if team is None:
        comm.barrier()
    else:
        team.close()


def agreed(comm: Comm, work: Callable[[], T]) -> T:
    """Return ``work()`` if it succeeds on all ranks; collective.

    Raises JobError: on every rank, when files, values or packages failed ``work`` on any.
    """
    result, complaint = None, ""
    try:
        result = work()
    except (OSError, ValueError, ImportError) as error:
        complaint = str(error) or type(error).__name__
    failed = np.flatnonzero(comm.allgather(np.array([bool(complaint)], np.int32), control=True))
    if len(failed):
        raise JobError(complaint or f"stopping because of rank {failed[0]}; see its error")
    return result  # type: ignore[return-value]


def threads_per_rank(comm: Comm) -> int:
    """Return the number of threads for this rank: its CPUs, shared with the other ranks that run on them; collective.

    Right for ranks that are bound to CPUs of their own and for ranks that are not.
    """
    mine = np.zeros(8 + MAX_CPUS, np.uint8)  # the host, then one flag a CPU
    mine[:8] = np.frombuffer(zlib.crc32(machine().encode()).to_bytes(8, "little"), np.uint8)
    mine[8 + np.array(allowed_cpus())] = 1
    everybody = comm.allgather(mine, control=True)
    host = everybody[(everybody[:, :8] == mine[:8]).all(axis=1)]
    sharing = host[(host[:, 8:] & mine[8:]).any(axis=1)]
    return max(1, int(mine[8:].sum()) // len(sharing))


def machine() -> str:
    """Return a text that only processes on the same machine share.

    On Linux it is the boot id of the kernel, which containers and emulated hosts share as they share the CPUs;
    elsewhere it is the host's name.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return socket.gethostname()


def allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(cpu for cpu in os.sched_getaffinity(0) if cpu < MAX_CPUS)
    return list(range(min(os.cpu_count() or 1, MAX_CPUS)))


class Interruption:
    """A handler of `SIGNALS` that remembers them instead of ending the process.

    Python lets only the main thread set a handler: made in another thread, nothing is noticed.
    """

    def __init__(self) -> None:
        self.noticed = False
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._notice)

    def anywhere(self, step: int, comm: Comm) -> bool:
        """Return whether any rank got a signal: after every `EVERY`-th step, collectively, else always False."""
        if step % EVERY:
            return False
        return bool(comm.allreduce(np.array([self.noticed], np.int32), "max", control=True)[0])

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.noticed = True
