"""A Slurm of four virtual nodes that is up while the tests of this folder run, and a user's shell on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..launch import ALLOWED, ROOT
from .slurm_cluster import PACKAGES, Cluster, missing, wait

SECONDS = 300  # for one job, on a busy machine
NODES = 4


class Queue:
    """What a user's shell is on a login node: a folder with the project in it, and Slurm's commands."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder = folder
        for part in ("slurm", "train", "sparse_mpi", "examples", "tests"):
            (folder / part).symlink_to(ROOT / part)
        (folder / "runs").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        path = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", os.defpath)])
        own = {"OMP_NUM_THREADS": "1", "CLUSTER_VENV": sys.prefix, "PYTHONPATH": str(folder), "PATH": path}
        self.environment = ALLOWED | kept | own | cluster.environment

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run ``command`` to its end; again, where Open MPI fell over its own feet before the program began.

        On a machine so busy that one rank's first message comes while another one is still inside MPI_Init, Open MPI
        5.0.11 sometimes crashes there.
        """
        where = {"cwd": self.folder, "env": self.environment}
        for _ in range(2):
            done = subprocess.run(command, **where, capture_output=True, text=True, timeout=SECONDS)
            if not ("Segmentation fault" in done.stderr and "ompi_mpi_init" in done.stderr):
                break
        return done

    def submit(self, *command: str) -> str:
        done = self.run("sbatch", "--parsable", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[0]

    def output(self, job: str) -> str:
        return "".join(file.read_text() for file in self.folder.glob(f"runs/*-{job}.out"))

    def finish(self, *command: str) -> str:
        """Submit a job, wait until it has ended well; what it printed.

        ``sbatch --wait`` would look more and more rarely, and take up to half a minute longer.
        """
        job = self.submit(*command)
        self.wait(job, lambda: self.state(job) == "COMPLETED")
        return self.output(job)

    def wait(self, job: str, condition: Callable[[], bool]) -> None:
        met = wait(lambda: condition() or self.state(job) == "FAILED", SECONDS) and condition()
        assert met, f"job {job}, {self.state(job)}:\n{self.output(job)}"

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job).stdout)
        assert found, f"job {job} is unknown"
        return found[1]


@pytest.fixture(scope="session")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """On a Slurm that is up while these tests run; without one they fail if SLURM_REQUIRED is set."""
    give_up = pytest.fail if os.environ.get("SLURM_REQUIRED") else pytest.skip
    if reason := missing():
        give_up(reason)
    with Cluster(tmp_path_factory.mktemp("slurm"), NODES, cpus=2) as cluster:
        tried = cluster.run("srun", "--mpi=pmix", "echo", "works")
        if "works" not in tried.splitlines():
            give_up(f"srun --mpi=pmix does not work here: {tried}; apt-get install {PACKAGES}")
        yield Queue(cluster, tmp_path_factory.mktemp("login"))
