"""The doctor: healthy, with made-up findings, and with children that crash, hang and fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli.doctor import command, facts, findings, first_step, probes
from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.comm.runtime import LAUNCHERS

from ..launch import ROOT, launch, needs_mpi
from ..prefork import copied

HEALTHY = {
    "host": "a",
    "versions": {"python": "3.12.0", "numpy": "2.4.0", "numba": "0.68", "cupy": "14.0"},
    "cores": [0, 1],
    "threads": 1,
    "gpus": ["H, driver 1, 80 GiB"],
    "network": ["ib0, InfiniBand at 100 Gb/sec", "eth0 at 10 Gbit/s"],
    "transport": {"OMPI_MCA_btl": "^ofi"},
    "launcher": {"OMPI_COMM_WORLD_SIZE": "2"},
    "settings": {},
    "rank": 0,
    "size": 2,
    "vendor": "Open MPI",
    "mpi": "Open MPI v5",
    "standard": "3.1",
    "thread level": "multiple",
    "device pointers": False,
    "device pointers because": "nobody says so",
}

STEPS = """
import sys
from itertools import product
import numpy as np, sparse_mpi
from sparse_mpi.reduction.arguments import algorithm_spelled
def rank(comm):
    for name, n in product(sys.argv[1:], (2_000, 400_000)):
        reducer = sparse_mpi.SparseAllreduce(n, density=0.02, comm=comm, algorithm=algorithm_spelled(name))
        for step in range(3):
            reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(n, dtype=np.float32))
for ranks in (2, 5):
    sparse_mpi.World(ranks).run(rank)
"""


def job(*changes: dict) -> list[dict]:
    """The facts of as many ranks, each healthy but for its changes."""
    return [HEALTHY | {"rank": rank} | change for rank, change in enumerate(changes)]


def about(found: list[Finding], subject: str) -> Finding:
    (one,) = [finding for finding in found if finding.about == subject]
    return one


def test_a_child_is_no_rank_of_the_parents_job(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_MCA_btl"):
        monkeypatch.setenv(name, "7")
    code = "import os; raise SystemExit(' '.join(name for name in os.environ if os.environ[name] == '7'))"
    monkeypatch.setattr(probes, "START_MPI", ["-c", code])
    assert probes.start_mpi().says == "mpi4py cannot be imported: OMPI_MCA_btl"


@pytest.mark.parametrize(("takes", "grade"), [(True, "fine"), (False, "fine"), (None, "broken")])
def test_device_pointers_are_reported_with_the_reason(takes, grade):
    finding = findings.launch(job({}, {"device pointers": takes, "device pointers because": "it says so"}))[-1]
    assert finding.grade == grade and "it says so (rank 1)" in finding.says
    assert ("SPARSE_MPI_CUDA_AWARE" in finding.remedy) == (grade == "broken")


@pytest.mark.parametrize(
    ("numba", "error", "says", "remedy"),
    [
        ({}, None, "nothing to compile", "install the extra cpu"),
        ({"numba": "1"}, ImportError("x"), "ImportError('x')", "uninstall numba"),
        ({"numba": "1"}, None, "is kept in", ""),
    ],
)
def test_what_first_steps_show(monkeypatch, numba, error, says, remedy):
    pytest.importorskip("numba")
    monkeypatch.setattr(first_step, "make_steps", Mock(side_effect=error))
    finding = first_step.first_step(numba)
    assert says in finding.says and finding.remedy.startswith(remedy)
    assert (finding.grade == "broken") == bool(error)


@pytest.mark.full("compiles all kernels, a minute")
def test_what_is_compiled_is_all_that_a_job_needs(tmp_path):
    """By the times of the caches' files: sums by all algorithms, and training, write none behind it."""
    pytest.importorskip("numba")

    def files():
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb?")}

    def run(*words):
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    run("-m", "sparse_mpi", "doctor", "--compile")
    compiled = files()
    assert len(compiled) > 150
    run("-c", STEPS, *ALGORITHMS, "oktopk:wire=packed+int8", "gtopk:wire=packed+bf16", "topka:selector=dgc")
    for program in ("vgg", "gpt2"):
        run(f"train/{program}.py", "--tiny", "--max-steps", "3", "--algo", "adtopk" if program == "vgg" else "elect")
    assert files() == compiled


def test_ranks_that_differ_are_named():
    ranks = job({}, {}, {"host": "b", "versions": HEALTHY["versions"] | {"numpy": "1.26"}})
    different = findings.versions(ranks)
    assert different.grade == "advice" and "numpy 2.4.0 (ranks 0, 1); 1.26 (rank 2)" in different.says
    assert "ranks differ in numpy" in different.remedy and "not installed: torch" in different.says
    assert "a (ranks 0, 1); b (rank 2)" in about(findings.launch(ranks), "ranks").says
    assert findings.said([1] * 20 + [2]).endswith("0, 1, 2, 3, 4, 5, 6, 7 and 12 more); 2 (rank 20)")
    assert about(findings.launch(job({}, {"mpi": "MPICH 4"})), "MPI").grade == "broken"


@pytest.mark.parametrize(
    ("vendor", "settings", "remedy"),
    [
        ("Open MPI", {"SLURM_JOB_ID": "1"}, "srun --mpi=pmix"),
        ("MPICH", {"SLURM_JOB_ID": "1"}, "srun --mpi=pmi2"),
        ("MPICH", {}, "its own mpiexec"),
    ],
)
def test_singletons_are_broken(vendor, settings, remedy):
    lonely = job({"size": 1, "vendor": vendor, "settings": settings, "launcher": {"SLURM_STEP_NUM_TASKS": "4"}})
    finding = about(findings.launch(lonely), "ranks")
    assert finding.grade == "broken" and finding.says.startswith("singletons") and remedy in finding.remedy
    assert about(findings.launch(job({"size": 1, "launcher": {"PMI_SIZE": "1"}})), "ranks").grade == "fine"


def test_too_many_ranks_and_threads_for_a_host():
    assert [finding.grade for finding in findings.cores(job({}, {}))] == ["fine"]
    remedies = [finding.remedy for finding in findings.cores(job({"threads": 2}, {}, {"host": "b"}))]
    assert remedies == ["", "export OMP_NUM_THREADS=1"]
    crowd = job({}, {}, {})
    assert findings.cores(crowd)[1].remedy == "export OMPI_MCA_mpi_yield_when_idle=1"
    told = {"settings": {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}}
    (only,) = findings.cores(job(told, told, told))
    assert only.says == "1 of 2 usable cores; OMP_NUM_THREADS: 1"


def test_networks_are_named_with_their_rates(tmp_path):
    for name, of in {
        "net/lo": {"operstate": "unknown"},
        "net/eth0": {"operstate": "up", "speed": "25000"},
        "net/eth1": {"operstate": "up", "speed": "-1"},
        "net/eth2": {"operstate": "down"},
        "ib/mlx5_0/ports/1": {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "InfiniBand"},
        "ib/mlx5_0/ports/2": {"state": "1: DOWN"},
    }.items():
        (tmp_path / name).mkdir(parents=True)
        for file, text in of.items():
            (tmp_path / name / file).write_text(f"{text}\n")
    assert facts.interfaces(f"{tmp_path}/net/*") == ["eth0 at 25 Gbit/s", "eth1"]
    assert facts.fabrics(f"{tmp_path}/ib/*/ports/*") == ["mlx5_0, InfiniBand at 100 Gb/sec (4X EDR)"]
    alone, two = (findings.network(job(*of)).says for of in ([{}, {}], [{}, {"host": "b", "network": []}]))
    assert alone.startswith("one host, MPI takes shared memory; for several: ib0, InfiniBand at 100 Gb/sec; eth0 at 10")
    assert "2 hosts: ib0" in two and "none that is up (rank 1); variables of the transport: OMPI_MCA_btl=^ofi" in two


def test_an_mpi_that_does_not_start(monkeypatch, capsys):
    monkeypatch.setattr(probes, "START_MPI", ["-c", "import os; os.abort()"])
    monkeypatch.setattr(command, "first_step", lambda versions: Finding("kernels", "none"))
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "! MPI: mpi4py cannot be imported: SIGABRT" in printed and "1 broken (!)" in printed


@needs_mpi
@pytest.mark.jobs
def test_rank_0_speaks_for_all():
    done = launch(2, *copied("-m", "sparse_mpi", "doctor", "--json"))
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    found = {finding["about"]: finding for finding in record["findings"]}
    expected = {"versions", "MPI", "ranks", "thread level", "kernel threads", "kernels", "GPU", "device pointers"}
    assert expected <= set(found) and [(rank["rank"], rank["size"]) for rank in record["ranks"]] == [(0, 2), (1, 2)]
    assert found["ranks"]["says"].startswith("2 ranks on ")
