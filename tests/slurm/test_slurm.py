"""The jobs in slurm/ under a real Slurm of four virtual nodes, submitted as a user does."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..launch import ROOT
from .conftest import SECONDS
from .test_slurm_files import TRAINED

more_than_one_job = pytest.mark.full("one job shows that Slurm's files and Open MPI fit together")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3 * SECONDS)]


@more_than_one_job
def test_ranks_that_do_not_know_of_each_other_are_told_what_to_do(queue):
    done = queue.run("srun", "--mpi=none", "-n", "2", "python", "train/vgg.py", "--tiny", "--max-steps", "1")
    assert done.returncode != 0
    assert "singletons" in done.stderr and "srun --mpi=pmix" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.thin(0, name=("vgg",))
@pytest.mark.parametrize("name", sorted(name for name, call in TRAINED.items() if call))
def test_the_job_of_a_program_trains(queue, name):
    if not (ROOT / "train" / f"{name}.py").exists():
        pytest.skip(f"train/{name}.py is not there")
    printed = queue.finish("--nodes=2", f"slurm/{name}.sbatch", "--tiny", "--max-steps", "3", "--no-progress")
    assert "replicas identical, 3 steps" in printed, printed


@more_than_one_job
def test_a_program_is_tried_in_ten_minutes_of_a_part_of_nodes(queue):
    printed = queue.finish("slurm/smoke.sbatch", "gpt2", "--max-steps", "3", "--no-progress")
    assert "replicas identical, 3 steps" in printed, printed


@more_than_one_job
@pytest.mark.parametrize(
    ("bound", "asked", "seen"),
    [
        ("", "--gpus-per-node=2", ["0,1"] * 4),
        ("", "--gpus=4", ["0,1"] * 4),
        ("1", "--gpus-per-node=2", ["0", "1"] * 2),
        ("", "--gpus-per-node=1", ["0"] * 2),
        ("", "--exclusive", [""] * 2),
    ],
)
def test_there_is_a_rank_for_each_gpu_that_was_asked_for(queue, monkeypatch, bound, asked, seen):
    monkeypatch.setitem(queue.environment, "CLUSTER_GPUS_PER_RANK", bound)
    say = "echo rank $SLURM_PROCID on node $SLURM_NODEID sees GPUs \\[$CUDA_VISIBLE_DEVICES\\]"
    text = f"""#!/usr/bin/env bash
#SBATCH --job-name=see --ntasks-per-node=1 --exclusive --output=runs/%x-%j.out
. slurm/env.sh
"${{LAUNCH[@]}}" bash -c '{say}'
"""
    (queue.folder / "see.sbatch").write_text(text)
    printed = queue.finish("--nodes=2", asked, "see.sbatch")
    ranks, nodes = len(seen), [rank * 2 // len(seen) for rank in range(len(seen))]
    expected = [f"rank {rank} on node {nodes[rank]} sees GPUs [{seen[rank]}]" for rank in range(ranks)]
    assert sorted(line for line in printed.splitlines() if "sees GPUs" in line) == expected, printed


@more_than_one_job
def test_a_gpu_is_checked(queue):
    """Pretended: what is shown is that the stages' own jobs start inside of one."""
    options = ["--pretend", "--only", "doctor", "allreduce-2"]
    printed = queue.finish("--ntasks-per-node=2", "--cpus-per-task=1", "slurm/gpu_check.sbatch", *options)
    assert "| doctor | passed |" in printed and "| allreduce-2 | passed |" in printed, printed
    assert "MPI: Open MPI" in printed and list(queue.folder.glob("runs/gpu_check-*/gpu-check.json")), printed


@more_than_one_job
@pytest.mark.timeout(5 * SECONDS)
def test_a_job_goes_on_where_it_was_interrupted(queue):
    """Warned of its time limit, then requeued as by preemption, then cancelled for good."""
    options = ["--tiny", "--epochs", "10000", "--log-every", "1", "--no-progress"]
    job = queue.submit("--nodes=2", "slurm/vgg.sbatch", *options)
    records = queue.folder / "runs" / f"vgg-{job}" / "metrics.jsonl"

    def steps() -> list[int]:
        lines = records.read_text().splitlines(keepends=True) if records.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["step"] for event in events if event["event"] == "step"]

    def goes_on(starts: int) -> None:
        """Wait until it takes new steps in its nth start."""
        queue.wait(job, lambda: f"start {starts}" in queue.output(job))
        queue.wait(job, lambda: starts == 1 or queue.output(job).count("resuming from") == starts - 1)
        before = len(steps())
        queue.wait(job, lambda: len(steps()) > before)

    goes_on(1)
    queue.run("scancel", "--batch", "--signal=USR1", job)
    goes_on(2)
    queue.run("scontrol", "requeue", job)
    goes_on(3)
    queue.run("scancel", job)
    queue.wait(job, lambda: queue.state(job) == "CANCELLED" and queue.output(job).count("stopped after step") == 3)
    printed = queue.output(job)
    stops = [int(step) for step in re.findall(r"stopped after step (\d+)", printed)]
    assert stops == sorted(set(stops)) and steps() == list(range(1, stops[-1] + 1)), printed
    assert re.findall(r"start (\d)", printed) == ["1", "2", "3"] and printed.count("back to the queue") == 1


@more_than_one_job
@pytest.mark.timeout(5 * SECONDS)
def test_a_job_whose_rank_is_killed_goes_back_to_the_queue_and_on_from_its_checkpoint(queue):
    options = ["--tiny", "--epochs", "10000", "--max-steps", "400", "--checkpoint-every", "20", "--log-every", "1"]
    job = queue.submit("--nodes=2", "slurm/vgg.sbatch", *options, "--no-progress")
    records = queue.folder / "runs" / f"vgg-{job}" / "metrics.jsonl"
    queue.wait(job, lambda: records.exists() and records.read_text().count('"step"') > 40)
    os.kill({int(rank): pid for pid, rank in ranks_of(f"--out\0runs/vgg-{job}\0", "SLURM_PROCID")}[1], signal.SIGKILL)
    queue.wait(job, lambda: queue.state(job) == "COMPLETED")
    printed = queue.output(job)
    assert "back to the queue" in printed and re.search(r"resuming from .*step", printed), printed
    assert "start 2" in printed and "replicas identical, 400 steps" in printed, printed


@more_than_one_job
def test_a_job_goes_on_where_a_rank_is_killed(queue, monkeypatch):
    """Open MPI's own mpirun in the allocation: srun would end the step."""
    monkeypatch.setitem(queue.environment, "CLUSTER_LAUNCH", "mpirun --with-ft ulfm --mca coll ^han,cuda")
    options = ["--tiny", "--elastic", "--epochs", "10000", "--max-steps", "400", "--log-every", "1", "--no-progress"]
    job = queue.submit("--nodes=4", "slurm/vgg.sbatch", *options)
    folder = queue.folder / "runs" / f"vgg-{job}"

    def events() -> list[dict[str, Any]]:
        file = folder / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    queue.wait(job, lambda: len(events()) > 20)
    ranks = {int(rank): pid for pid, rank in ranks_of(f"--out\0runs/vgg-{job}\0")}
    os.kill(ranks[2], signal.SIGKILL)
    queue.wait(job, lambda: queue.state(job) == "COMPLETED")
    printed = queue.output(job)
    assert re.search(r"rank 2 lost before step \d+; 3 ranks go on", printed), printed
    assert "replicas identical, 400 steps" in printed, printed
    assert [(event["lost"], event["ranks"]) for event in events() if event["event"] == "loss"] == [([2], 3)]


def ranks_of(words: str, variable: str = "OMPI_COMM_WORLD_RANK") -> Iterator[tuple[int, str]]:
    """Yield the processes of a job whose command has these words, with their ranks."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(line.partition("=")[::2] for line in (place / "environ").read_text().split("\0"))
            if words in (place / "cmdline").read_text() and variable in variables:
                yield int(place.name), variables[variable]
        except (OSError, UnicodeDecodeError):  # it has ended, or is another's
            continue
