"""Running a job to its end: signals go to it, its exit status comes back, and nothing of it stays behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sparse_mpi.comm.job.time_limit import WATCH
from sparse_mpi.comm.runtime import FOLDER, TERMINAL, WORD
from sparse_mpi.tools.launch import processes
from sparse_mpi.tools.launch.command import Line
from sparse_mpi.tools.launch.flavours import Folders
from sparse_mpi.tools.launch.output import relay

PREFIX = "sparse_mpi-run"
PASSED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)
ONCE = 1.0  # seconds within which a second signal of one kind is the same one: timeout(1) sends each twice
LAST = 5.0  # seconds for the last output of a job
FROM_TERMINAL = 0x80  # SI_KERNEL: a key was pressed, and all processes of the terminal have got the signal


def run(line: Line, environment: Mapping[str, str]) -> int:
    """Run a job and return its exit status, 128 + n where signal n ended its launcher.

    Its stderr comes without the launcher's banners, see `output.Filter`, and each error of several ranks once.

    SIGUSR1, SIGUSR2 and SIGTERM reach the ranks, which may save their work and end in their own time; a second SIGTERM
    goes to the launcher, which kills them. SIGINT goes to the launcher. However this ends, no process of the job is
    left on this machine, and no temporary file or shared memory of the MPI.
    """
    processes.adopt_orphans()
    remove_leftovers()
    began = time.time()
    with _folders() as folders, _blocked():
        confine = {name: value for name, value in line.flavour.confine(folders).items() if name not in environment}
        settings = (
            {WATCH: "1"}
            | confine
            | line.environment(environment)
            | {FOLDER: str(folders.session), TERMINAL: _terminal()}
        )
        source, target = os.pipe()
        shown = threading.Thread(target=relay, args=(source, sys.stderr.fileno(), line.flavour.banners), daemon=True)
        shown.start()
        job = subprocess.Popen(line.words, env=settings, stderr=target, preexec_fn=_before_exec)
        os.close(target)
        try:
            status, interrupted = _wait(job, line)
        finally:
            with suppress(ProcessLookupError):
                job.kill()
            job.wait()
            processes.kill_children()
            shown.join(LAST)
        word = folders.session / WORD
        if interrupted and word.exists():
            print(word.read_text(), file=sys.stderr)
            processes.remove_segments(line.flavour.leftovers, began)
    if interrupted and status in (0, 1):  # Open MPI does not tell
        return 128 + signal.SIGINT
    return status if status >= 0 else 128 - status


def _terminal() -> str:
    """Return the path of the terminal that shows stderr; "" if none does."""
    try:
        return os.ttyname(sys.stderr.fileno())
    except OSError:
        return ""


def _before_exec() -> None:
    """Prepare the child: it ends with its parent and takes signals again."""
    processes.die_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED | {signal.SIGCHLD})


@contextmanager
def _blocked() -> Iterator[None]:
    """Keep signals pending, for `_wait` to take them one by one."""
    ours = PASSED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(job: subprocess.Popen[bytes], line: Line) -> tuple[int, bool]:
    """Pass signals on until the launcher ends; return its status, and True if it was interrupted."""
    taken: dict[int, float] = {}
    while (status := job.poll()) is None:
        found = signal.sigtimedwait(PASSED | {signal.SIGCHLD}, 0.5)
        if found is None or found.si_signo == signal.SIGCHLD:
            continue
        before, taken[found.si_signo] = taken.get(found.si_signo), time.monotonic()
        again = before is not None
        if before is not None and taken[found.si_signo] - before < ONCE:
            continue
        if found.si_code != FROM_TERMINAL:
            _pass(job, line, signal.Signals(found.si_signo), again)
    return status, signal.SIGINT in taken


def _pass(job: subprocess.Popen[bytes], line: Line, number: signal.Signals, again: bool) -> None:
    """Send a signal to the launcher, or to the ranks themselves if the launcher would not pass it on."""
    direct = line.local and number == signal.SIGTERM and number not in line.flavour.relayed and not again
    targets = processes.children(job.pid) if direct else []
    for process in targets or [job.pid]:
        with suppress(ProcessLookupError):
            os.kill(process, number)


@contextmanager
def _folders() -> Iterator[Folders]:
    """Make private folders for the MPI's temporary files, which go with the job."""
    made: list[Path] = []
    try:
        made.append(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-")))
        with suppress(OSError):
            made.append(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-", dir=processes.SHARED)))
        yield Folders(made[0], made[-1])
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of launchers that were killed before they could do it."""
    for place in (Path(tempfile.gettempdir()), processes.SHARED):
        for folder in place.glob(f"{PREFIX}-*"):
            owner = re.match(rf"{PREFIX}-(\d+)-", folder.name)
            if owner and not processes.alive(int(owner[1])):
                shutil.rmtree(folder, ignore_errors=True)
