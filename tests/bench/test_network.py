"""``bench network``: rates, names and command lines of emulated hosts, wherever the tests run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.cli.launch.find import INTEL_MPI
from sparse_mpi.predict import rates
from sparse_mpi_bench.commands import bench_network
from sparse_mpi_bench.emulation import launch
from sparse_mpi_bench.emulation.hosts import Hosts
from sparse_mpi_bench.emulation.probe import Link, below, measured, shortfalls

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
    assert rates.parse(text) == bits


@pytest.mark.parametrize("text", ["1", "gbit", "fast", "-1gbit", "1ibit", "10Gbps", "10gb", "999kbit", "1000gbit"])
def test_a_wrong_rate_is_named(text):
    with pytest.raises(ValueError, match=re.escape(text)):
        rates.parse(text)


LINK = Link(rate=0.95e9, trip=2e-5, each=(0.95e9,) * 8, busy=0.5, load=1.0)


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({}, None),
        ({"each": (0.4e9, 0.6e9) * 4}, "cores decide, not links: 8 hosts together moved 4 of 8 Gbit/s"),
        ({"rate": 0.5e9}, "one link alone gave 50% of its rate: this machine was busy"),
    ],
)
def test_a_link_that_does_not_hold_its_rate_is_marked_everywhere(change, remark):
    gave = measured(LINK._replace(**change), 10**9)
    assert gave["remark"] == remark
    assert gave["gbit"] == change.get("rate", 0.95e9) / 1e9 and len(gave["each"]) == 8
    job = {"rate": "1gbit", "ranks": 8, "measured": gave}
    assert below(job) is (remark is not None)
    told = bench_network.told(8, "1gbit", gave)
    assert told.endswith(remark or "950 Mbit/s each at once")
    assert "".join(shortfalls([job])).endswith(f"  P=8 1gbit: {remark}" if remark else "")


def test_a_link_without_a_limit_has_no_rate_to_miss():
    assert measured(LINK._replace(each=(1.0,)), None)["remark"] is None
    assert not below({"rate": "none", "measured": {"gbit": 0.1}})


def test_mpich_is_held_to_the_links():
    line = " ".join(launch.mpich(PAIR))
    assert line.startswith("-n 2 -ppn 1 -hosts 198.18.0.1,198.18.0.2 ")
    assert "-launcher-exec folder/agent -iface switch" in line and "-genv FI_PROVIDER tcp" in line


def test_an_mpi_that_cannot_be_held_to_the_links():
    with pytest.raises(RuntimeError, match="hosts need Open MPI or MPICH, but mpi4py loads Intel MPI"):
        launch.options_for(INTEL_MPI)


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
        (("shutil.which", lambda name, **where: None), "apt install iproute2"),
    ],
)
def test_what_is_missing_is_said(monkeypatch, change, says):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(*change)
    with pytest.raises(SystemExit, match=f"bench network cannot run here:\n(?s:.*){says}"):
        main(["bench", "network"])
