"""A program in a child process of its own, so that its crash or hang is a finding and not the end of the doctor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparse_mpi.tools.launch.environment import outside_of_jobs


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
