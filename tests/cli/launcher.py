"""Jobs that the launcher starts, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ..launch import ROOT

PATH = os.environ.get("PATH", os.defpath)


def start(
    python: str | Path, folder: Path, *arguments: object, before: tuple[str, ...] = (), **variables: str
) -> subprocess.Popen[str]:
    """``python -m sparse_mpi run *arguments`` with these variables only, its temporary files in ``folder``; the command
    ``before`` replaces itself by it."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*before, python, "-m", "sparse_mpi", "run", *map(str, arguments)],
        cwd=ROOT,
        env={"PATH": PATH, "TMPDIR": str(temporary)} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    """The status and output of a job, of which nothing must be left."""
    try:
        out, error = job.communicate(timeout=240)
    finally:
        job.kill()
    assert list((folder / "temporary").iterdir()) == []
    assert running(folder) == []
    return job.returncode, out, error


def running(folder: Path) -> list[str]:
    """The command lines that name a file of the test's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(folder) in line and "pytest" not in line:
            found.append(line)
    return found
