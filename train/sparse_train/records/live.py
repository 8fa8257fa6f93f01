"""Ways to reduce as the command line of a study spells them, and their runs as real jobs on emulated hosts."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.reduction.arguments import spelled
from sparse_train.options.reduction import AUTO
from sparse_train.records.metrics import BUDGET

TRAIN = Path(__file__).parents[2]
LIMIT = 1800  # seconds that a job may take
PARTS = ("compute_seconds", "exposed_seconds", "update_seconds")  # of a step
Records = Sequence[dict[str, Any]]
SHARDS = ("shuffled", "sorted")


def arguments(way: str) -> list[str]:
    """Return a way as the command line of a training program: its algorithm, and the program's other options."""
    name, *given = way.split(":")
    own = [field.name for field in fields(ALGORITHMS[name])] if name in ALGORITHMS else []
    algorithm = [name, *(option for option in given if option.split("=")[0] in own)]
    others = [option for option in given if option not in algorithm]
    return ["--algo", ":".join(algorithm), *_words(others)]


def dealing(shards: str) -> list[str]:
    """Return a kind of shards, and options that go with it, as the command line of a training program."""
    kind, *given = shards.split(":")
    options = [] if kind == "shuffled" else ["--shards", kind]  # not every program has that option
    return [*options, *_words(given)]


def _words(options: Iterable[str]) -> list[str]:
    return [word for option in options for word in f"--{option}".split("=", 1)]


def check_program(text: str) -> None:
    """Raise ValueError unless there is a program of this name."""
    if not text.isidentifier() or not (TRAIN / f"{text}.py").is_file():
        raise ValueError(f"must be a program of train/, without .py, got {text!r}")


def check_way(text: str) -> None:
    """Raise ValueError unless the text begins with an algorithm, and goes on with options that have names."""
    _, algorithm, *others = arguments(text)
    if algorithm != AUTO:
        spelled(algorithm)
    if "--" in others:
        raise ValueError(f"must be ALGORITHM[:OPTION=VALUE..], got {text}")


def check_shards(text: str) -> None:
    """Raise ValueError unless the text begins with a kind of shards."""
    if text.partition(":")[0] not in SHARDS:
        raise ValueError(f"must be one of {', '.join(SHARDS)}, with options if need be, got {text}")


def start(program: str, ranks: int, links: Sequence[str], argv: Sequence[str], log: Path) -> None:
    """Run a program of train/, by its name without .py, on as many emulated hosts as ``ranks`` until it ends.

    ``links`` are the options of ``bench network`` that say what their links give, ``argv`` those of the program; the
    file ``log`` gets what is printed. Raises SystemExit, with the exit code, if the job fails, which has said why.
    """
    command = [sys.executable, "-m", "sparse_mpi", "bench", "network", "--ranks", str(ranks), *links]
    command += ["--timeout", str(LIMIT), "--", str(TRAIN / f"{program}.py"), *argv]
    with log.open("w") as printed:
        if code := subprocess.run(command, stdout=printed, stderr=printed).returncode:
            print(log.read_text()[-2000:], file=sys.stderr)
            raise SystemExit(code)


def step_seconds(events: Records) -> list[float]:
    """Return how long each step took that the records of a run tell of."""
    return [sum(event[part] for part in PARTS) for event in events if event["event"] == "step"]


def measured(events: Records) -> dict[str, Any]:
    """Return what the records of a whole run tell of its time: a median step, and what a budget let it send.

    A budget counts the time between two steps too; ``spent`` has the bytes it counted, its seconds, its steps, and the
    share of these that were dense.
    """
    found: dict[str, Any] = {"step_seconds": statistics.median(step_seconds(events))}
    if decisions := [event for event in events if event["event"] == BUDGET]:
        last = decisions[-1]
        seconds = last["elapsed"] - decisions[0]["elapsed"]
        found["spent"] = {
            "mb": sum(event["mb_sent"] for event in decisions[1:]),
            "mb_credit": last["mb_credit"] - decisions[0]["mb_credit"],
            "seconds": seconds,
            "steps": len(decisions) - 1,
            "dense": statistics.mean(event["dense"] for event in decisions),
        }
    return found


def clock(epochs: Records) -> list[float]:
    """Return after how many seconds of steps each epoch was over; tests take no time in it."""
    return list(accumulate(epoch["seconds"] for epoch in epochs))
