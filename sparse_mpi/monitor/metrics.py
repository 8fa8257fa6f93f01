"""Write the reports of reducers to files in the folder ``SPARSE_MPI_METRICS_DIR``.

Each rank has a file for node_exporter's textfile collector of Prometheus, see docs/guides/observe.md.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any

from sparse_mpi.arrays import namespace
from sparse_mpi.checks import present
from sparse_mpi.comm import Comm
from sparse_mpi.comm.job import launcher
from sparse_mpi.comm.runtime import TORCHRUN, told_rank
from sparse_mpi.monitor.step_report import StepReport, combined

DIRECTORY, JOB = launcher.METRICS, "SPARSE_MPI_METRICS_JOB"
SECONDS = 5.0  # time between two writes of a file, or two norms of one residual
MOST_REDUCERS = 64  # most reducers of a rank with series of their own; later ones are added up under the name OTHER
OTHER = "other"
# Launchers' variables for the job; torchrun says "none" where it was given no name
JOBS = (JOB, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", TORCHRUN, "PMIX_NAMESPACE")
LOGGER = logging.getLogger("sparse_mpi")
_FILES: dict[tuple[int, Path], _RankFile] = {}  # process, of which this one may be a fork, and path -> file
_WARNED: set[Path] = set()  # folders that cannot be written to
# For each reducer: name, help, and the value of the sums, the last step and the series. Names of counters end in
# _total; others are gauges
METRICS: tuple[tuple[str, str, Callable[[StepReport, StepReport, Series], float]], ...] = (
    ("steps_total", "Reductions that were completed.", lambda sums, last, of: of.steps),
    ("sent_bytes_total", "Payload bytes sent.", lambda sums, last, of: sums.traffic.sent),
    ("received_bytes_total", "Payload bytes received.", lambda sums, last, of: sums.traffic.received),
    ("control_bytes_total", "Bytes sent for counts and boundaries.", lambda sums, last, of: sums.traffic.control),
    ("messages_total", "Messages sent.", lambda sums, last, of: sums.traffic.messages),
    ("select_seconds_total", "Seconds in selections.", lambda sums, last, of: sums.select_seconds),
    ("exchange_seconds_total", "Seconds in calls, waits included.", lambda sums, last, of: sums.exchange_seconds),
    ("merge_seconds_total", "All other seconds.", lambda sums, last, of: sums.merge_seconds),
    ("wall_seconds_total", "Seconds from the end of the first reduction on.", lambda sums, last, of: of.wall),
    ("selected_entries_total", "Entries selected.", lambda sums, last, of: sums.selected),
    ("result_entries_total", "Entries of the results.", lambda sums, last, of: sums.total),
    ("elements", "Elements of the gradient.", lambda sums, last, of: of.elements),
    ("density_ratio", "Share that the last step selected.", lambda sums, last, of: last.selected / of.elements),
    ("imbalance_ratio", "Payload bytes received over sent in the last step.", lambda sums, last, of: imbalance(last)),
    ("residual_norm", "L2 norm of the residual, seconds ago at most.", lambda sums, last, of: of.norm),
)


@dataclass(eq=False)
class Series:
    """The reports of one reducer: added up, and the last one."""

    steps: int = 0
    elements: int = 0
    began: float = math.nan  # end of the first step
    wall: float = 0.0  # seconds since, at the last one
    norm: float = math.nan  # norm of the residual
    measured: float = -math.inf  # time of that norm
    sums: StepReport | None = None
    last: StepReport | None = None

    def add(self, report: StepReport, elements: int, now: float) -> None:
        self.began = self.began if self.steps else now
        self.wall = now - self.began
        self.steps, self.elements, self.last = self.steps + 1, elements, report
        self.sums = combined([self.sums, report])


def imbalance(report: StepReport) -> float:
    """Return a step's received over sent payload bytes; 1 where there were none."""
    sent, received = report.traffic.sent, report.traffic.received
    return received / sent if sent else math.inf if received else 1.0


class _RankFile:
    """The file of one rank's reducers. A failure to write is one warning."""

    def __init__(self, path: Path, job: str, rank: int) -> None:
        self.path, self._job, self._rank = path, job, rank
        self._series: dict[str, Series] = {}  # reducer -> its series
        self._written = -math.inf
        self._lock = RLock()  # several threads may reduce, each for other reducers
        self._process = os.getpid()

    def note(self, number: int, engine: Any) -> None:
        """Note the step of reducer ``number``, and write the file if due; nothing in a forked child."""
        if os.getpid() != self._process:
            return
        report = present(engine.report, "a report must come before it is noted")
        reducer = str(number) if number < MOST_REDUCERS else OTHER
        with self._lock:
            now, series = monotonic(), self._series.setdefault(reducer, Series())
            series.add(report, engine.layout.size, now)
            if now - series.measured >= SECONDS:
                residual = engine.feedback.residual
                series.measured, series.norm = now, float(namespace(residual).linalg.norm(residual))
            if now - self._written >= SECONDS:
                self._written = now
                self.write()

    def write(self) -> None:
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        with self._lock:
            try:
                # A collector finds the old file or the new one, never a part. Links are replaced, not followed
                temporary.unlink(missing_ok=True)
                with temporary.open("x", encoding="utf-8", errors="replace") as file:
                    file.write(self.text())
                temporary.replace(self.path)
            except OSError as error:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                if self.path.parent not in _WARNED:
                    _WARNED.add(self.path.parent)
                    text = f"{DIRECTORY}: {self.path.parent}: {error.strerror}; training goes on without these metrics"
                    if launcher.first_to_say(text):
                        LOGGER.warning(text)

    def text(self) -> str:
        job = self._job.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines = []
        for short, help, value in METRICS:
            name, kind = f"sparse_mpi_{short}", "counter" if short.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            for reducer, of in self._series.items():
                if of.sums is not None and of.last is not None:
                    labels = f'job="{job}",rank="{self._rank}",reducer="{reducer}"'
                    lines.append(f"{name}{{{labels}}} {value(of.sums, of.last, of)}")
        return "\n".join([*lines, ""])


def file_of(comm: Comm) -> _RankFile:
    """Return this rank's file in the folder of `DIRECTORY`, written once more at the end."""
    told = [os.environ.get(name, "") for name in JOBS]
    job = next((text for text in told if text not in ("", "none")), f"{socket.gethostname()}-{os.getppid()}")
    if job == os.environ.get("SLURM_JOB_ID") and "SLURM_STEP_ID" in os.environ:  # steps may run at the same time
        job += f".{os.environ['SLURM_STEP_ID']}"
    rank, plain = told_rank(comm.rank), re.sub(r"[^\w.-]", "_", job)
    path = Path(os.environ[DIRECTORY]).absolute() / f"sparse_mpi-{plain}-{rank}.prom"
    if not _FILES:
        atexit.register(write_all)
    return _FILES.setdefault((os.getpid(), path), _RankFile(path, job, rank))


def write_all() -> None:
    for (process, _), file in _FILES.items():
        if process == os.getpid():
            file.write()
