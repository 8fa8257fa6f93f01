"""Run a command in a session of its own, its output in a file, for a limited time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GRACE = 20.0  # seconds from SIGTERM to SIGKILL: emulated hosts are removed in these
OF_MPI = re.compile(r"\[[^]\s]+:\d+\] ")  # how Open MPI's own messages begin, some of them after all others
ESCAPE = re.compile(r"\x1b\[[\d;]*m")  # colours, of which Open MPI 4 sends one for each rank at the end


class Ended(NamedTuple):
    status: int | None  # None for a command that ran past its limit
    last: str  # line that it printed
    seconds: float


def run(
    words: Sequence[str],
    log: Path,
    seconds: float,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] | None = None,
) -> Ended:
    """Run ``words`` in the checkout for at most ``seconds``; ``say`` gets the last line now and then.

    However this ends, all processes of the session are gone.
    """
    began = monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=file, stderr=file, start_new_session=True)
        try:
            while (status := process.poll()) is None and (left := began + seconds - monotonic()) > 0:
                if say:
                    say(last_line(log))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(0.5, left))
        finally:
            _end(process)
    return Ended(status, last_line(log), monotonic() - began)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a session to end if its first process still runs, and kill the rest of it."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """Return the last line in a file, without colours, and without messages of the MPI."""
    lines = re.split(r"[\r\n]+\s*", ESCAPE.sub("", log.read_text(errors="replace")))
    return next((line[:160] for line in reversed(lines) if line.strip() and not OF_MPI.match(line)), "nothing printed")
