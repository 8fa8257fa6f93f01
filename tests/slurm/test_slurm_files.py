"""The files in slurm/ and pbs/: sound without any scheduler, and one for every program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..launch import ROOT, launch

JOBS = sorted((ROOT / "slurm").glob("*.sbatch"))
PBS = sorted((ROOT / "pbs").glob("*.pbs"))
SHELL = sorted([*JOBS, *(ROOT / "slurm").glob("*.sh"), *PBS])
SHELLCHECK = shutil.which("shellcheck")
TRAINED = {job.stem: re.search(r"train\.sh (\w+) (\S+)", job.read_text()) for job in JOBS}
ANALYSES = {"gradients", "study"}  # no jobs of many nodes
STARTED = {
    file.stem for file in (ROOT / "train").glob("*.py") if '__name__ == "__main__"' in file.read_text()
} - ANALYSES

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.mark.parametrize("file", SHELL, ids=lambda file: file.name)
def test_bash_reads_the_file(file):
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(SHELLCHECK is None, reason="needs shellcheck")
@pytest.mark.parametrize("file", SHELL, ids=lambda file: file.name)
def test_shellcheck_finds_nothing(file):
    command = [SHELLCHECK, "--severity=warning", "--external-sources", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout


def sourced(*commands: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Source slurm/env.sh as a job of these variables does, then run the commands."""
    script = "; ".join(["set -euo pipefail", ". slurm/env.sh", *commands])
    environment = {"PATH": os.environ.get("PATH", os.defpath), "CLUSTER_VENV": ""} | variables
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


NODE = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_ON_NODE": "64"}
BLOCK = "--distribution=block:block"
FOUR = "--ntasks=8 --ntasks-per-node=4 " + BLOCK


@pytest.mark.parametrize(
    ("variables", "options", "threads"),
    [
        ({}, "", 64),
        ({"SLURM_NTASKS_PER_NODE": "4"}, "", 16),
        ({"SLURM_GPUS_ON_NODE": "4"}, "", 64),
        ({"SLURM_GPUS_PER_NODE": "4"}, FOUR, 16),
        ({"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_GPUS_ON_NODE": "8"}, FOUR, 16),
        ({"SLURM_GPUS": "h100:8"}, FOUR, 16),
        ({"SLURM_GPUS_PER_NODE": "1"}, BLOCK, 64),
        ({"SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS_PER_NODE": "8"}, BLOCK, 8),
        ({"SLURM_GPUS_PER_NODE": "4", "CLUSTER_RANKS_PER_NODE": "1"}, BLOCK, 64),
        ({"SLURM_NTASKS_PER_NODE": "4", "CLUSTER_RANKS_PER_NODE": "2"}, "--ntasks=4 --ntasks-per-node=2", 32),
        ({"SLURM_GPUS_PER_NODE": "4", "SLURM_DISTRIBUTION": "cyclic"}, "--ntasks=8 --ntasks-per-node=4", 16),
        ({"SLURM_GPUS_PER_NODE": "4", "CLUSTER_GPUS_PER_RANK": "1"}, f"{FOUR} --gpu-bind=per_task:1", 16),
        ({"SLURM_GPUS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "2"}, FOUR, 1),
        ({"SLURM_GPUS_PER_NODE": "4", "OMP_NUM_THREADS": "3"}, FOUR, 3),
    ],
    ids=str,
)
def test_ranks_of_a_node_follow_its_gpus_unless_told(variables, options, threads):
    done = sourced('echo "${LAUNCH[@]}"', 'echo "$OMP_NUM_THREADS"', **NODE | variables)
    assert done.returncode == 0, done.stderr
    launch, number = done.stdout.splitlines()
    assert launch == f"srun --mpi=pmix --kill-on-bad-exit=1 {options}".strip() and number == str(threads)


@pytest.mark.parametrize("name", ["CLUSTER_RANKS_PER_NODE", "CLUSTER_GPUS_PER_RANK"])
@pytest.mark.parametrize("value", ["0", "-1", "all", "2.5"])
def test_numbers_that_are_none_are_refused(name, value):
    done = sourced("echo started", **NODE | {name: value})
    assert done.returncode == 1 and f"{name} must be an integer >= 1, got {value}; leave it empty" in done.stderr
    assert not done.stdout


def queued(job: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a job of PBS on two nodes of two ranks, where python and mpiexec only say how they are called."""
    (folder / "slurm").symlink_to(ROOT / "slurm")
    (folder / "nodes").write_text("a\na\nb\nb\n")
    for name in ("python", "mpiexec"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\necho "${0##*/} $*, $OMP_NUM_THREADS threads"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{folder}/bin:{os.environ.get('PATH', os.defpath)}", "CLUSTER_VENV": ""}
    environment |= {"PBS_O_WORKDIR": str(folder), "PBS_NODEFILE": str(folder / "nodes"), "PBS_JOBID": "17.host"}
    command = ["bash", str(ROOT / "pbs" / job)]
    options = {"cwd": "/", "env": environment | {"OMP_NUM_THREADS": "8"} | variables}
    return subprocess.run(command, **options, capture_output=True, text=True, timeout=120)


def test_pbs_trains_on_a_rank_for_each_line_of_its_node_file(tmp_path):
    done = queued("train.pbs", tmp_path, TRAIN="vgg cifar10 --seed 2")
    assert done.returncode == 0, done.stderr
    words = "train/vgg.py --resume --checkpoint-every 500 --out runs/vgg-17 --data cifar10 --seed 2"
    assert done.stdout.splitlines()[-1] == f"mpiexec -n 4 python {words}, 8 threads"


def test_pbs_is_told_what_to_train(tmp_path):
    done = queued("train.pbs", tmp_path)
    assert done.returncode != 0 and "TRAIN must be a program, its data and options, got nothing; qsub" in done.stderr


def test_pbs_checks_a_gpu(tmp_path):
    done = queued("gpu_check.pbs", tmp_path)
    assert done.stdout == "python -m runs.gpu_check --out runs/gpu_check-17 --budget 1080, 8 threads\n", done.stderr


@pytest.mark.parametrize("job", PBS, ids=lambda job: job.stem)
def test_a_job_of_pbs_asks_for_gpus_and_for_threads_of_a_rank(job):
    chunk = re.search(r"^#PBS -l select=\d+:(\S+)$", job.read_text(), re.MULTILINE)[1]
    asked = {name: int(number) for name, number in (part.split("=") for part in chunk.split(":"))}
    assert asked["ngpus"] >= 1 and asked["mpiprocs"] * asked["ompthreads"] == asked["ncpus"]


@pytest.mark.parametrize("name", sorted(STARTED))
def test_every_program_has_a_job(name):
    assert name in {job.stem for job in JOBS}, f"train/{name}.py can be started, but there is no slurm/{name}.sbatch"


@pytest.mark.thin(0)  # each starts a process that imports torch
@pytest.mark.parametrize("name", sorted(name for name, call in TRAINED.items() if call))
def test_a_job_trains_the_program_of_its_name_on_data_that_it_knows(name):
    program, data = TRAINED[name].groups()
    assert program == name
    if not (ROOT / "train" / f"{program}.py").exists():
        pytest.skip(f"train/{program}.py is not there")
    done = launch(None, f"train/{program}.py", "--data", data, "--help")
    assert done.returncode == 0 and "--data" in done.stdout, done.stderr


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_job_is_named_for_its_file_and_writes_where_it_can(job):
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", job.read_text(), re.MULTILINE))
    assert options["job-name"] == job.stem and options["output"] == "runs/%x-%j.out"
    assert {"nodes", "ntasks-per-node", "time"} <= options.keys()
    assert (ROOT / "runs").is_dir(), "Slurm makes no folder"


def test_scaling_has_its_number_of_ranks_on_nodes_with_more_gpus(tmp_path):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text('#!/bin/sh\necho "$CLUSTER_RANKS_PER_NODE ranks: $*"\n')
    sbatch.chmod(0o755)
    command = ["bash", "slurm/scaling.sh", "--ranks", "1 4", "--per-node", "2", "--algorithms", "dense"]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([*command, "--out", str(tmp_path / "out"), "--", "--gpus-per-node=4"], **options)
    assert done.returncode == 0, done.stderr
    assert [line.split(" slurm/")[0] for line in done.stdout.splitlines()[:-1]] == [
        *["1 ranks: --nodes=1 --ntasks=1 --ntasks-per-node=1 --gpus-per-node=4"] * 2,
        *["2 ranks: --nodes=2 --ntasks=4 --ntasks-per-node=2 --gpus-per-node=4"] * 2,
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--ranks", "2 x"], "must be integers >= 1, got x"),
        (["--per-node", "0"], "must be integers >= 1, got 0"),
        (["--out"], "--out needs a value"),
        (["--rank", "2"], "unknown option --rank"),
    ],
)
def test_scaling_refuses(options, complaint):
    where = {"cwd": ROOT, "env": os.environ | {"CLUSTER_VENV": sys.prefix}}
    command = ["bash", "slurm/scaling.sh", "--dry-run", *options]
    done = subprocess.run(command, **where, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and complaint in done.stderr and not done.stdout


def plot(*paths: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "slurm/plot_scaling.py", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_records_become_a_figure(tmp_path):
    pytest.importorskip("matplotlib")
    for ranks in (2, 4):
        step = {name: {"step": 0.01 * ranks, "bytes": 1e6} for name in ("dense", "oktopk")}
        training = {"dense": {"seconds": 0.1, "exposed": 0.05, "mb": 2.0}}
        for kind, found in (
            ("step", {"options": {"model": None, "n": 1000, "density": 0.01}, "results": step}),
            ("training", {"options": ["--density", "0.05"], "program": "vgg", "medians": training}),
        ):
            (tmp_path / f"{kind}-p{ranks}.json").write_text(json.dumps({"ranks": ranks, **found}))
    done = plot(tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == str(tmp_path / "scaling.png"), done.stderr
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_record_is_refused(tmp_path):
    done = plot(tmp_path)
    assert done.returncode == 1 and f"no *.json in {tmp_path}" in done.stderr
    (tmp_path / "plan.json").write_text('{"ranks": 2}')
    done = plot(tmp_path / "plan.json")
    assert done.returncode == 1 and "plan.json must be a record of bench steps" in done.stderr
