"""A job from its start to its end."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import psutil

from sparse_mpi.cli.launch.launch_command import LaunchCommand
from sparse_mpi.comm.job.launcher import FOLDER
from sparse_mpi.comm.job.watchdog import WATCH

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE, POLL = 5.0, 0.05  # seconds in which killed processes must be gone, and from one look to the next
PASSED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)
ONCE = 1.0  # seconds within which a second signal of one kind is the same one: timeout(1) sends each twice
FROM_TERMINAL = 0x80  # SI_KERNEL: a key was pressed, and all processes of the terminal have got the signal


def run(command: LaunchCommand, meanwhile: Iterable[float] = (), end: Callable[[int], int] = int) -> int:
    """Run a job and return ``end(status)`` of its exit status, 128 + n if signal n ended its launcher.

    Meanwhile, ``meanwhile`` is asked for its next item after each number of seconds that it yields. One rank prints
    errors that several have alike.

    SIGUSR1, SIGUSR2 and SIGTERM reach the ranks, which may save their work and end in their own time; a second SIGTERM
    goes to the launcher, which kills them. SIGINT goes to the launcher. However this ends, no process or temporary file
    of the job is left on this machine; earlier processes stay, see `apart`.
    """
    return apart(lambda: end(_run(command, meanwhile)))


def _run(command: LaunchCommand, meanwhile: Iterable[float]) -> int:
    with tempfile.TemporaryDirectory(prefix="sparse_mpi-run-", ignore_cleanup_errors=True) as folder, _blocked():
        session = {name: folder for name in command.library.flavour.session if name not in os.environ}
        settings = {WATCH: "1"} | session | command.environment(os.environ) | {FOLDER: folder}
        job = subprocess.Popen(command.words, env=settings, preexec_fn=_before_exec)
        try:
            status, interrupted = _wait(job, command, meanwhile)
        finally:
            with suppress(ProcessLookupError):
                job.kill()
            job.wait()
            _kill_descendants()
    if interrupted and status in (0, 1):  # Open MPI's status does not show it
        return 128 + signal.SIGINT
    return _shell(status)


def apart(work: Callable[[], int]) -> int:
    """Return ``work()``, done in a process with all that it starts as descendants, also when their parents end.

    A process that became this program by ``exec`` may have children from before. Then a fork does the work, which gets
    neither them nor their orphans, and this process passes its signals on.
    """
    if not psutil.Process().children():
        _adopt_orphans()
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    with _blocked() as before:
        fork = os.fork()
        if not fork:
            _do_and_exit(work, before)
        while not (ended := os.waitpid(fork, os.WNOHANG))[0]:
            found = signal.sigtimedwait(PASSED | {signal.SIGCHLD}, 0.5)
            if found is not None and found.si_signo != signal.SIGCHLD and found.si_code != FROM_TERMINAL:
                os.kill(fork, found.si_signo)
    return _shell(os.waitstatus_to_exitcode(ended[1]))


def _do_and_exit(work: Callable[[], int], signals: set[signal.Signals]) -> NoReturn:
    """Do a fork's work, with these ``signals`` blocked, and end it without its parent's exit handlers."""
    status = 1
    try:
        _end_with_parent(signal.SIGKILL)  # as if both were one process
        _adopt_orphans()
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        status = work()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # its reader has gone
                stream.flush()
        os._exit(status)


def _shell(status: int) -> int:
    return status if status >= 0 else 128 - status


def _adopt_orphans() -> None:
    """Make this process the parent of descendants when their parents end, so that none gets away."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_parent(number: int) -> None:
    """Ask for signal ``number`` when the parent ends, even by SIGKILL."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def _kill_descendants() -> None:
    """Kill all processes below this one, see `apart`, until none is left."""
    deadline = time.monotonic() + PATIENCE
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, POLL)


def _before_exec() -> None:
    _end_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED | {signal.SIGCHLD})


@contextmanager
def _blocked() -> Iterator[set[signal.Signals]]:
    """Block the signals that are passed on; the context's value is those blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED | {signal.SIGCHLD})
    try:
        yield {*map(signal.Signals, before)}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(job: subprocess.Popen[bytes], command: LaunchCommand, meanwhile: Iterable[float]) -> tuple[int, bool]:
    taken: dict[int, float] = {}
    began, coming = time.monotonic(), iter(meanwhile)
    due = next(coming, math.inf)
    while (status := job.poll()) is None:
        if (left := began + due - time.monotonic()) <= 0:
            due = next(coming, math.inf)
            continue
        found = signal.sigtimedwait(PASSED | {signal.SIGCHLD}, min(0.5, left))
        if found is None or found.si_signo == signal.SIGCHLD:
            continue
        before, taken[found.si_signo] = taken.get(found.si_signo, -math.inf), time.monotonic()
        if found.si_code != FROM_TERMINAL and taken[found.si_signo] - before >= ONCE:
            _pass(job, command, found.si_signo, again=before > 0)
    return status, signal.SIGINT in taken


def _pass(job: subprocess.Popen[bytes], command: LaunchCommand, number: int, again: bool) -> None:
    with suppress(psutil.NoSuchProcess):
        launcher = psutil.Process(job.pid)
        direct = number == signal.SIGTERM and command.library.flavour.kills and not again
        for process in (launcher.children() if direct else []) or [launcher]:
            process.send_signal(number)
