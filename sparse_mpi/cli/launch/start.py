"""What a launcher prints on stderr, passed on as it comes but for its banners: one line says how the job ended.

The processes of a job on this machine: those that descend from its launcher, and what they leave in shared memory.

Linux only; elsewhere nothing is found, and the launcher alone answers for its job.

Running a job to its end: signals go to it, its exit status comes back, and nothing of it stays behind.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from sparse_mpi.cli.launch.command import Line
from sparse_mpi.cli.launch.find import Folders
from sparse_mpi.comm.job.launcher import FOLDER, TERMINAL, WORD
from sparse_mpi.comm.job.watchdog import WATCH

RULE = re.compile(rb"-{70,}\r?\n")  # above and below a banner
LONGEST = 40  # lines of a banner
HELD = 0.5  # seconds after which an unfinished one is no banner, but output of the program

Banners = Sequence[tuple[str, str]]  # pattern, and template of the line that replaces what matches; "" for none


class Filter:
    """Replaces banners, blocks of lines between two rules, in a stream of bytes; all else passes unchanged at once.

    Args:
        banners: what to look for, and what to say in its place, as `re.Match.expand` has it.
    """

    def __init__(self, banners: Banners) -> None:
        self._banners = [(re.compile(pattern, re.DOTALL), said) for pattern, said in banners]
        self._block: list[bytes] = []  # lines of what may be a banner
        self._line = b""  # the beginning of a line that may be a rule
        self._inside = False  # the beginning of the line has passed already

    @property
    def holds(self) -> bool:
        """Return True if there are bytes that have not passed yet."""
        return bool(self._block or self._line)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return those that pass."""
        passed = b""
        *lines, rest = (self._line + data).split(b"\n")
        self._line = b""
        for line in lines:
            passed += self._take(line + b"\n")
        if rest and (self._inside or not (self._block or rest.strip(b"-") == b"")):
            self._inside = True
            return passed + rest
        self._line = rest
        return passed

    def flush(self) -> bytes:
        """Return all bytes that are held."""
        held = b"".join(self._block) + self._line
        self._inside = self._inside or bool(self._line)
        self._block, self._line = [], b""
        return held

    def _take(self, line: bytes) -> bytes:
        """Take a whole line, or the end of one, and return what passes."""
        inside, self._inside = self._inside, False
        is_rule = not inside and RULE.fullmatch(line) is not None
        if not self._block:
            if is_rule:
                self._block = [line]
                return b""
            return line
        self._block.append(line)
        if is_rule:
            return self._replaced()
        return self.flush() if len(self._block) > LONGEST else b""

    def _replaced(self) -> bytes:
        """Return what is said in place of the block that is complete now."""
        text = b"".join(self._block)
        for pattern, said in self._banners:
            if found := pattern.search(text.decode(errors="replace")):
                self._block = []
                return f"{found.expand(said)}\n".encode() if said else b""
        return self.flush()


def relay(source: int, target: int, banners: Banners) -> None:
    """Pass all bytes of the file descriptor ``source`` to ``target`` until its end, but for banners."""
    through = Filter(banners)
    while True:
        ready = select.select([source], [], [], HELD if through.holds else None)[0]
        data = os.read(source, 1 << 16) if ready else b""
        passed = through.feed(data) if data else through.flush()
        while passed:
            passed = passed[os.write(target, passed) :]
        if ready and not data:
            return


LINUX = sys.platform == "linux"
PROC, SHARED = Path("/proc"), Path("/dev/shm")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE = 5.0  # seconds in which killed processes must be gone
POLL = 0.02


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends, so that none gets away."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def family() -> dict[int, list[int]]:
    """Return the processes of this machine by their parent."""
    found: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
            found.setdefault(parent, []).append(int(folder.name))
    return found


def children(parent: int) -> list[int]:
    """Return the processes whose parent is ``parent``."""
    return family().get(parent, [])


def kill_children() -> None:
    """Kill all children of this process until none is left, those that it inherits meanwhile too."""
    deadline = time.monotonic() + PATIENCE
    while (left := children(os.getpid())) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)
        time.sleep(POLL)


def alive(process: int) -> bool:
    """Return True if a process of that number runs."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def remove_segments(patterns: Iterable[str], since: float, folder: Path = SHARED) -> None:
    """Remove shared-memory files of this user, younger than ``since``, that match and that no process has open.

    A process of another job that has just made one has it open, and later mapped: looking in this order misses none.
    """
    patterns = tuple(patterns)
    if not LINUX or not patterns:
        return
    found = set()
    for file in folder.glob("*"):
        with suppress(OSError):
            status = file.stat()
            ours = status.st_uid == os.geteuid() and status.st_ctime >= since
            if ours and any(fnmatchcase(file.name, pattern) for pattern in patterns):
                found.add(str(file))
    for name in found - (_used() if found else set()):
        with suppress(OSError):
            os.unlink(name)


def _used() -> set[str]:
    """Return the files in shared memory that a process has open or mapped."""
    found = set()
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError):
                    found.add(os.readlink(descriptor))
        with suppress(OSError):
            found.update(line.split(maxsplit=5)[-1] for line in (folder / "maps").read_text().splitlines())
    return found


PREFIX = "sparse_mpi-run"
PASSED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)
ONCE = 1.0  # seconds within which a second signal of one kind is the same one: timeout(1) sends each twice
LAST = 5.0  # seconds for the last output of a job
FROM_TERMINAL = 0x80  # SI_KERNEL: a key was pressed, and all processes of the terminal have got the signal


def run(line: Line, environment: Mapping[str, str], meanwhile: Iterable[float] = ()) -> int:
    """Run a job and return its exit status, 128 + n where signal n ended its launcher.

    While it runs, ``meanwhile`` is asked for its next item at each of the seconds that it yields.

    Its stderr comes without the launcher's banners, see `output.Filter`, and each error of several ranks once.

    SIGUSR1, SIGUSR2 and SIGTERM reach the ranks, which may save their work and end in their own time; a second SIGTERM
    goes to the launcher, which kills them. SIGINT goes to the launcher. However this ends, no process of the job is
    left on this machine, and no temporary file or shared memory of the MPI.
    """
    adopt_orphans()
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
            status, interrupted = _wait(job, line, meanwhile)
        finally:
            with suppress(ProcessLookupError):
                job.kill()
            job.wait()
            kill_children()
            shown.join(LAST)
        word = folders.session / WORD
        if interrupted and word.exists():
            print(word.read_text(), file=sys.stderr)
            remove_segments(line.flavour.leftovers, began)
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
    """Let signals come, and ask for SIGTERM when the parent ends, even by SIGKILL."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
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


def _wait(job: subprocess.Popen[bytes], line: Line, meanwhile: Iterable[float]) -> tuple[int, bool]:
    """Pass signals on until the launcher ends; return its status, and True if it was interrupted."""
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
    targets = children(job.pid) if direct else []
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
            made.append(Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-", dir=SHARED)))
        yield Folders(made[0], made[-1])
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove the folders of launchers that were killed before they could do it."""
    for place in (Path(tempfile.gettempdir()), SHARED):
        for folder in place.glob(f"{PREFIX}-*"):
            owner = re.match(rf"{PREFIX}-(\d+)-", folder.name)
            if owner and not alive(int(owner[1])):
                shutil.rmtree(folder, ignore_errors=True)
