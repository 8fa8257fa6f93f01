"""The files in slurm/: sound without any Slurm, and one for every program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..launch import ALLOWED, MPIEXEC, ROOT, launch, needs_mpi

JOBS = sorted((ROOT / "slurm").glob("*.sbatch"))
SHELL = sorted([*JOBS, *(ROOT / "slurm").glob("*.sh")])
TRAINED = {job.stem: re.search(r"train\.sh (\S+) (\S+)", job.read_text()) for job in JOBS}
ANALYSES = {"gradients", "study"}  # no jobs of many nodes
STARTED = {
    file.stem for file in (ROOT / "train").glob("*.py") if '__name__ == "__main__"' in file.read_text()
} - ANALYSES

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def scaling(*options: str) -> subprocess.CompletedProcess[str]:
    """Run slurm/scaling.sh with this Python."""
    command = ["bash", "slurm/scaling.sh", *options]
    environment = os.environ | {"CLUSTER_VENV": sys.prefix}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("file", SHELL, ids=lambda file: file.name)
def test_bash_reads_the_file(file):
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


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


@pytest.mark.full("a whole job; what it does is tested in process, and one job of each program in test_train_programs")
@needs_mpi
def test_another_launcher_than_srun_starts_and_resumes_a_program(tmp_path):
    """As under PBS: the same file, the launcher and the job's number from the environment."""
    for part in ("slurm", "train", "sparse_mpi"):
        (tmp_path / part).symlink_to(ROOT / part)

    def train(job: str, *options: str) -> str:
        variables = {"CLUSTER_LAUNCH": f"{MPIEXEC} -n 2", "CLUSTER_VENV": sys.prefix, "PBS_JOBID": job}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        command = ["bash", "slurm/train.sh", "vgg", "cifar10", "--tiny", "--no-progress", *options]
        environment = ALLOWED | kept | variables
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        config = json.loads((tmp_path / "runs" / f"vgg-{job[:2]}" / "metrics.jsonl").read_text().splitlines()[0])
        assert (config["ranks"], config["data"]) == (2, "digits")
        return done.stdout

    assert "replicas identical, 2 steps" in train("17.host", "--max-steps", "2", "--checkpoint-every", "1")
    printed = train("18.host", "--max-steps", "4", "--resume", "runs/vgg-17")
    assert "resuming from runs/vgg-17/checkpoints" in printed and "replicas identical, 4 steps" in printed


def test_scaling_shows_the_jobs_it_would_submit():
    options = ["--ranks", "2 6", "--densities", "0.01 0.05", "--per-node", "4", "--algorithms", "dense oktopk"]
    done = scaling("--dry-run", *options, "--out", "runs/none", "--", "--account=me")
    assert done.returncode == 0, done.stderr
    *jobs, last = done.stdout.splitlines()
    assert len(jobs) == 2 * 2 * 2
    assert jobs[0] == (
        "sbatch --nodes=1 --ntasks=2 --ntasks-per-node=2 --account=me slurm/bench.sbatch "
        "--density 0.01 --json runs/none/step-p2-d0.01.json --algorithms dense oktopk"
    )
    assert "--nodes=2 --ntasks=6 --ntasks-per-node=4" in jobs[-1] and "training-p6-d0.05.json" in jobs[-1]
    assert last.endswith("python slurm/plot_scaling.py runs/none") and not (ROOT / "runs" / "none").exists()


def test_scaling_takes_all_algorithms_unless_told():
    done = scaling("--dry-run", "--ranks", "2")
    assert done.returncode == 0 and done.stdout.count(" adtopk ") == 2, done.stdout + done.stderr


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
    done = scaling("--dry-run", *options)
    assert done.returncode == 2 and complaint in done.stderr and not done.stdout


def plot(*paths: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "slurm/plot_scaling.py", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_records_become_a_figure(tmp_path):
    pytest.importorskip("matplotlib")
    for ranks in (2, 4):
        step = {name: {"step": 0.01 * ranks, "bytes": 1e6} for name in ("dense", "oktopk")}
        training = {"dense": {"step_seconds": 0.1, "bytes_per_step_and_rank": 2e6}}
        for kind, options, found in (
            ("step", {"model": None, "n": 1000, "density": 0.01}, step),
            ("training", {"model": "vgg16", "algos": ["dense"], "density": 0.05}, training),
        ):
            record = {"ranks": ranks, "options": options, "algorithms": found}
            (tmp_path / f"{kind}-p{ranks}.json").write_text(json.dumps(record))
    done = plot(tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == str(tmp_path / "scaling.png"), done.stderr
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_record_is_refused(tmp_path):
    done = plot(tmp_path)
    assert done.returncode == 1 and f"no *.json in {tmp_path}" in done.stderr
    (tmp_path / "plan.json").write_text('{"ranks": 2}')
    done = plot(tmp_path / "plan.json")
    assert done.returncode == 1 and "plan.json must be a record of bench allreduce" in done.stderr
