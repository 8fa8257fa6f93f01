"""Every program as jobs of 4 ranks: with every algorithm, and killed and resumed.

python -m tests.train.program_jobs RECORDS.json           in about a quarter of an hour on two cores
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import sparse_mpi
from sparse_mpi.checkpoint import latest
from sparse_mpi.cli.records import provenance

from ..launch import launch, start
from ..prefork import copied

RANKS = 4
STEPS = 12  # at most, of a job that is killed
PROGRAMS = {
    "vgg": ["vgg"],
    "resnet": ["resnet"],
    "lstm speech": ["lstm", "--task", "speech"],
    "lstm text": ["lstm", "--task", "text"],
    "transformer": ["transformer"],
    "bert pretrain": ["bert", "--task", "pretrain"],
    "bert squad": ["bert", "--task", "squad"],
    "gpt2": ["gpt2"],
    "vit": ["vit"],
}
NEEDS = {"lstm speech": "espeakng_loader"}  # the module without which a program cannot be run
SCALARS = ("step/loss", "step/lr", "step/mb_sent", "epoch/loss", "epoch/test_loss")
# The algorithm with which a program is killed, each with another
KILLED = {
    "vgg": "oktopk",
    "resnet": "adtopk",
    "lstm speech": "topka",
    "lstm text": "gtopk",
    "transformer": "gaussiank",
    "bert pretrain": "topkdsa",
    "bert squad": "powersgd",
    "gpt2": "acpsgd",
    "vit": "dense-bf16",
}


def trained(asked: Mapping[str, Sequence[str]], folder: Path, ranks: int = RANKS) -> list[dict[str, Any]]:
    """Return the records of all programs in ``asked`` with the algorithms there, in one start of mpiexec.

    See `tests.train.every_algorithm`.
    """
    words = [[",".join(algorithms), *PROGRAMS[name]] for name, algorithms in asked.items()]
    together = " + ".join(map(" ".join, words)).split()
    finished("-m", "tests.train.every_algorithm", str(folder), *together, ranks=ranks)
    lines = (folder / "records.jsonl").read_text().splitlines()
    names = [name for name, algorithms in asked.items() for _ in algorithms]
    return [{"program": name} | json.loads(line) for name, line in zip(names, lines, strict=True)]


def finished(*arguments: str, ranks: int = RANKS) -> subprocess.CompletedProcess[str]:
    """Run a job, assert that it ends without an error, and return the process."""
    done = launch(ranks, *copied(*arguments), seconds=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout[-1000:]}{done.stderr[-4000:]}")
    return done


def command(name: str, folder: Path, *options: str) -> list[str]:
    """Return the command line that trains program ``name`` into ``folder``."""
    program, *task = PROGRAMS[name]
    usual = f"--tiny --algo {KILLED[name]} --max-steps {STEPS} --checkpoint-every 2 --log-every 1 --threads 1 --plot"
    return [f"train/{program}.py", *task, *usual.split(), "--out", str(folder), *options]


def killed(name: str, folder: Path) -> int:
    """Kill a job, mpiexec and all ranks, without warning; return the step of the checkpoint it was killed after."""
    leftovers = str(folder.parent.absolute())  # of Open MPI
    process = start(RANKS, *command(name, folder), TMPDIR=leftovers)
    deadline = time.monotonic() + 300
    while not latest(folder / "checkpoints") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if process.poll() is not None:
        raise RuntimeError(f"{name} ended before it was killed: {process.communicate()}")
    kill(process)
    checkpoint = latest(folder / "checkpoints")
    if checkpoint is None:
        raise RuntimeError(f"{name} wrote no checkpoint in time")
    return int(checkpoint.name.removeprefix("step-"))


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a job, mpiexec and all that it started, and remove its shared memory."""
    os.kill(process.pid, signal.SIGSTOP)
    everybody = [process.pid, *descendants(process.pid)]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)  # nobody starts or buries others any more
    shared = {path for pid in everybody for path in shared_memory(pid)}
    for pid in reversed(everybody):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    while any(map(is_running, everybody)):
        time.sleep(0.01)
    for path in shared:
        path.unlink(missing_ok=True)


def descendants(pid: int) -> list[int]:
    """Return the processes that ``pid`` started, and those that they started."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def is_running(pid: int) -> bool:
    """Whether a process is there; one that only waits to be noticed by its parent is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def shared_memory(pid: int) -> list[Path]:
    """Return the files in shared memory that process ``pid`` has open."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line]


def records(folder: Path, event: str) -> list[dict[str, Any]]:
    """Return the records that a job wrote with this ``event``."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def survived(name: str, folder: Path) -> dict[str, Any]:
    """Compare a job that was killed and resumed with one that was not, bit by bit, and list what that one showed.

    ``folder`` gets the folders of both.
    """
    straight, struck = folder / "straight", folder / "killed"
    done = finished(*command(name, straight, "--timeline", str(folder / "timeline.png")))
    step = killed(name, struck)
    finished(*command(name, struck, "--resume"))
    (expected,), (resumed,) = records(straight, "final"), records(struck, "final")
    steps = expected["steps"]
    same = [resumed[key] == expected[key] for key in ("digest", "loss", "score", "steps")]
    shows = {
        "bar": re.search(rf"epoch \d+/\d+: {steps}/{steps} after .*loss", done.stderr) is not None,
        "scalars": {*SCALARS, f"epoch/test_{expected['headline']}"} <= scalars(straight),
        "plot": is_picture(straight / "plot.png"),
        "timeline": is_picture(folder / "timeline.png"),
    }
    return {"program": name, "algorithm": KILLED[name], "killed_after": step, "resumed": all(same), "shows": shows}


def scalars(folder: Path) -> set[str]:
    """Return the names of a job's TensorBoard scalars whose values are all finite."""
    accumulated = EventAccumulator(str(folder)).Reload()
    tags = accumulated.Tags()["scalars"]
    return {tag for tag in tags if all(math.isfinite(event.value) for event in accumulated.Scalars(tag))}


def is_picture(file: Path) -> bool:
    """Return whether it is a PNG."""
    return file.exists() and file.read_bytes().startswith(b"\x89PNG")


def main(file: Path) -> None:
    """Do it all, print a table as it comes and leave the records in ``file``."""
    folder = Path("runs/programs")
    shutil.rmtree(folder, ignore_errors=True)
    trainings, kills = [], []
    print("program        algorithm       loss  seconds  resumed to the bit")
    for name in PROGRAMS:
        place = folder / name.replace(" ", "-")
        for record in trained({name: list(sparse_mpi.ALGORITHMS)}, place):
            print("{program:14} {algorithm:11} {loss:8.4f} {seconds:8.1f}  {resumed}".format(**record), flush=True)
            trainings.append(record)
        kills.append(survived(name, place))
        print("{program:14} {algorithm:11} killed after step {killed_after}  {resumed}".format(**kills[-1]), flush=True)
    file.write_text(json.dumps({**provenance(), "trained": trainings, "killed": kills}, indent=1) + "\n")
    if not all(r["resumed"] for r in trainings + kills) or not all(all(kill["shows"].values()) for kill in kills):
        sys.exit(f"not everything went well, see {file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
